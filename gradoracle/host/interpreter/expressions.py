"""Python's operators between a kernel's values, in one step if the two dtypes decide what is computed.

Triton unwraps, converts, promotes and broadcasts both operands of every `x + y` and builds the result's type, which
takes many times as long as numpy takes for a tile.  For two new types Triton does it; if both hold the same numbers as
the result, its type is kept for the next time, and numpy alone computes.  Rounding, promotion and errors stay Triton's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from gradoracle.host.interpreter import intervention, lockstep
from gradoracle.host.interpreter.blocks import (
    FLOATS,
    OFFSETS,
    Scalar,
    casts_directly,
    is_constant_of,
    reshaped,
    written,
)
from gradoracle.host.interpreter.rounding import to_bf16
from gradoracle.host.interpreter.values import BF16, Array, held_as, in_memory, is_widened
from gradoracle.model.formats import FORMATS

Operator = Callable[..., Any]
Result = tuple[Any, Any, Any, Any, bool]  # a tensor's type, dtype, shape and numel; whether numbers are rounded to bf16

_WIDE_FLOATS = frozenset(("fp32", "fp64"))
_BITS = OFFSETS | {"int1"}
_SMALLEST, _LARGEST = FORMATS["float32"].smallest_normal, FORMATS["float32"].largest
_EVERYTHING = slice(None)
_ADDRESS = 2**64 - 1
_CONSTANTS = 4096  # numbers that kernels write out are few

_constants: dict[tuple[type, Any, str, bool], Any] = {}


def tensor_of(data: Array, result: Result) -> Any:
    """A kernel's value of a known type."""
    if data.size > lockstep.largest:
        lockstep.grown(data.size)
    handle = object.__new__(TensorHandle)
    handle.data = data
    handle.attr = {}
    value = object.__new__(tl.tensor)
    value.handle = handle
    value.type, value.dtype, value.shape, value.numel, _ = result
    handle.dtype = value.dtype
    return value


def result_of(value: Any, rounded: bool = False) -> Result:
    """The data from which `tensor_of` makes another value of a value's type."""
    return value.type, value.dtype, value.shape, value.numel, rounded


def _number(value: Any, name: str, through_float32: bool) -> Any:
    """A number in an operation with dtype `name`, as a scalar of that dtype; None if Triton has to decide."""
    if type(value) is Scalar:
        value = float(value)
    if not is_constant_of(value, name) or (through_float32 and name == "fp64" and type(value) is float):
        return None
    if intervention.current is not None:
        if type(value) is float:
            value = intervention.current.number(value)
        made = written(value, getattr(tl, _DTYPES[name]))
        made.handle.data = intervention.offered(made.handle.data, name)
        return made
    key = (type(value), value, name, is_widened())
    known = _constants.get(key)
    if known is not None:
        return known
    made = written(value, getattr(tl, _DTYPES[name]))
    if value == value and len(_constants) < _CONSTANTS:
        _constants[key] = made
    return made


_DTYPES = {"fp32": "float32", "fp64": "float64", "int32": "int32", "int64": "int64"}


def _operator(
    compute: Callable[..., Array], same: frozenset[str], comparison: bool = False, reflected: bool = False
) -> Callable[[Operator], Operator]:
    """`compute` instead of Triton's operator, if both operands have one of the dtypes `same`."""
    rounds = not comparison

    def replacing(stock: Operator) -> Operator:
        known: dict[tuple[str, str], Result | None] = {}
        mixed: set[tuple[str, str]] = set()

        def learnt(self: Any, other: Any) -> Any:
            value = stock(self, other)
            left, right = self.dtype.name, other.dtype.name
            alike = (left == right and left in same) or (left in OFFSETS and right in OFFSETS and same >= OFFSETS)
            rounded = rounds and left == BF16 == right
            key = (self.type.name, other.type.name)
            if left != right and left in FLOATS and right in FLOATS and (left in _WIDE_FLOATS or right in _WIDE_FLOATS):
                mixed.add(key)  # numpy computes in the wider of the two, as Triton does, but casts no operand
                alike = True
            known[key] = result_of(value, rounded) if alike else None
            return value

        def call(self: Any, other: Any, _semantic: Any = None) -> Any:
            if type(other) is not tl.tensor:
                given = other.value if isinstance(other, tl.constexpr) else other
                number = _number(given, self.dtype.name, comparison)
                if number is None:
                    return stock(self, other)
                other = number
            key = (self.type.name, other.type.name)
            if key not in known:
                return learnt(self, other)
            result = known[key]
            if result is None or (intervention.current is not None and key in mixed):
                return stock(self, other)
            if reflected:
                data = compute(other.handle.data, self.handle.data)
            else:
                data = compute(self.handle.data, other.handle.data)
            if intervention.current is not None and rounds:
                data = intervention.offered(data, result[1].name)
            return tensor_of(to_bf16(data) if result[4] else data, result)

        return call

    return replacing


def _advancing(stock: Operator, otherwise: Operator, sign: int) -> Operator:
    """`pointer + offset`, or `pointer - offset`, too, whose type is the pointer's."""
    known: dict[tuple[str, str], Result] = {}

    def call(self: Any, other: Any, _semantic: Any = None) -> Any:
        if not isinstance(self.dtype, tl.pointer_type):
            return otherwise(self, other)
        if type(other) is not tl.tensor:
            given = other.value if isinstance(other, tl.constexpr) else other
            if not isinstance(given, int) or type(given) is bool or not -(2**31) < given < 2**31:
                return otherwise(self, other)
            bytes_ = sign * int(given) * in_memory(self.dtype.element_ty).itemsize
            return tensor_of(self.handle.data + np.uint64(bytes_ & _ADDRESS), result_of(self))
        if other.dtype.name not in OFFSETS:
            return otherwise(self, other)
        key = (self.type.name, other.type.name)
        if key not in known:
            value = stock(self, other)
            known[key] = result_of(value)
            return value
        offsets = other.handle.data if sign > 0 else -other.handle.data
        result, width = known[key], np.uint64(in_memory(self.dtype.element_ty).itemsize)
        return tensor_of(self.handle.data + width * offsets.astype(np.uint64), result)

    return call


def _add(stock: Operator) -> Operator:
    return _advancing(stock, _operator(np.add, FLOATS | OFFSETS)(stock), 1)


def _subtract(stock: Operator) -> Operator:
    return _advancing(stock, _operator(np.subtract, FLOATS | OFFSETS)(stock), -1)


def where(stock: Operator) -> Operator:
    """`tl.where` of a condition and two values of one dtype."""
    known: dict[tuple[str, str, str], Result | None] = {}

    def call(condition: Any, x: Any, y: Any, _semantic: Any = None) -> Any:
        if type(condition) is not tl.tensor or condition.dtype.name != "int1":
            return stock(condition, x, y)
        left, right = x, y
        if type(x) is not tl.tensor and type(y) is tl.tensor:
            left = _number(x.value if isinstance(x, tl.constexpr) else x, y.dtype.name, False)
        elif type(y) is not tl.tensor and type(x) is tl.tensor:
            right = _number(y.value if isinstance(y, tl.constexpr) else y, x.dtype.name, False)
        elif type(x) is float and type(y) is float and _are_float32(x, y):
            left, right = _number(x, "fp32", False), _number(y, "fp32", False)
        if type(left) is not tl.tensor or type(right) is not tl.tensor:
            return stock(condition, x, y)
        key = (condition.type.name, left.type.name, right.type.name)
        if key not in known:
            value = stock(condition, left, right)
            alike = left.dtype.name == right.dtype.name and left.dtype.name in FLOATS | _BITS
            known[key] = result_of(value) if alike else None
            return value
        result = known[key]
        if result is None:
            return stock(condition, x, y)
        return tensor_of(np.where(condition.handle.data, left.handle.data, right.handle.data), result)

    return call


def _are_float32(*numbers: float) -> bool:
    """Whether numbers are float32 where no tensor tells: others are float64."""
    return all([number == 0 or _SMALLEST <= abs(number) <= _LARGEST for number in numbers])


def getitem(stock: Operator) -> Operator:
    """`x[:, None]`: all the new axes at once."""
    known: dict[tuple[str, tuple[bool, ...]], tuple[list[int], Result]] = {}

    def call(self: Any, slices: Any, _semantic: Any = None) -> Any:
        items = slices.values if isinstance(slices, tl.tuple) else slices
        if not isinstance(items, (tuple, list)):
            return stock(self, slices)
        if not all([item is None or item == _EVERYTHING for item in items]):
            return stock(self, slices)
        key = (self.type.name, tuple([item is None for item in items]))
        if key not in known:
            value = stock(self, slices)
            known[key] = (list(value.type.shape.values), result_of(value))
            return value
        shape, result = known[key]
        return tensor_of(reshaped(self.handle.data, shape), result)

    return call


def to(stock: Operator) -> Operator:
    """`x.to(dtype)` of a number, to nearest even or, from an integer to an integer, to its low bits."""
    known: dict[tuple[str, str], Result | None] = {}

    def call(self: Any, dtype: Any, *more: Any, _semantic: Any = None, **options: Any) -> Any:
        target = dtype.value if isinstance(dtype, tl.constexpr) else dtype
        if more or options or not isinstance(target, tl.dtype):
            return stock(self, dtype, *more, **options)
        source, name = self.dtype.name, target.name
        if source == name:
            return self
        key = (self.type.name, name)
        if key not in known:
            value = stock(self, dtype)
            known[key] = result_of(value) if casts_directly(source, name) else None
            return value
        result = known[key]
        if result is None:
            return stock(self, dtype)
        data = self.handle.data
        if intervention.current is not None:
            data = intervention.offered(data.astype(held_as(target), copy=False), name)
        return tensor_of(to_bf16(data) if name == BF16 else data.astype(held_as(target), copy=False), result)

    return call


def _both(name: str, compute: Callable[..., Array], same: frozenset[str]) -> dict[str, Callable[[Operator], Operator]]:
    """An operator and its reflection."""
    return {f"__{name}__": _operator(compute, same), f"__r{name}__": _operator(compute, same, reflected=True)}


_COMPARISONS: dict[str, Callable[..., Array]] = {
    operator.lt.__name__: np.less,
    operator.le.__name__: np.less_equal,
    operator.gt.__name__: np.greater,
    operator.ge.__name__: np.greater_equal,
    operator.eq.__name__: np.equal,
    operator.ne.__name__: np.not_equal,
}
OPERATORS: dict[str, Callable[[Operator], Operator]] = {
    "__getitem__": getitem,
    "to": to,
    **_both("add", np.add, FLOATS | OFFSETS),
    "__add__": _add,
    **_both("sub", np.subtract, FLOATS | OFFSETS),
    "__sub__": _subtract,
    **_both("mul", np.multiply, FLOATS | OFFSETS),
    **_both("truediv", np.divide, _WIDE_FLOATS),
    **_both("and", np.bitwise_and, _BITS),
    **_both("or", np.bitwise_or, _BITS),
    **_both("xor", np.bitwise_xor, _BITS),
    **{f"__{name}__": _operator(compute, FLOATS | OFFSETS, comparison=True) for name, compute in _COMPARISONS.items()},
}
