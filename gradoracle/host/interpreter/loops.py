"""Loops of interpreted kernels: their variables are int32 or int64 scalars, as compiled ones are.

Triton's interpreter runs `for i in range(n)` with Python's own range, whose numbers have no `.to` and never wrap. Here
`range` and `tl.range` count with Python integers that have a dtype: arithmetic among them stays in Python, wraps like
the dtype and divides toward zero; with a float, and for any attribute, they become a scalar of that dtype.
`tl.static_range` gives plain numbers, which a compiler unrolls.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from gradoracle.host.interpreter import lockstep
from gradoracle.host.interpreter.blocks import OFFSETS, constant
from gradoracle.host.interpreter.values import held_as

NAME = "loop_over"  # in the globals of a rewritten kernel
_COMPILED_RANGE, _COMPILED_STATIC_RANGE = tl.range, tl.static_range


class LoopVariable(int):
    """A Python integer with the dtype of a loop's variable: its attributes are those of a scalar of that dtype."""

    bits: int
    dtype: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(constant(int(self), self.dtype), name)


def _arithmetic(compute: Callable[[int, int], int], reflected: bool) -> Callable[[Any, Any], Any]:
    """An operator: a loop variable for two integers, else what a scalar of Triton gives."""

    def call(self: Any, other: Any) -> Any:
        given = other.value if isinstance(other, tl.constexpr) else other
        if isinstance(given, int):
            left, right = (int(given), int(self)) if reflected else (int(self), int(given))
            return _wrapped(compute(left, right), _bits(self, given))
        if isinstance(given, float):
            scalar = constant(int(self), self.dtype)
            return compute(given, scalar) if reflected else compute(scalar, given)  # type: ignore[arg-type]
        if isinstance(given, tl.tensor) and given.dtype.is_int() and given.dtype.name not in OFFSETS:
            scalar = constant(int(self), self.dtype)  # not a constant, which would take the other's dtype
            return compute(given, scalar) if reflected else compute(scalar, given)  # type: ignore[arg-type]
        return NotImplemented

    return call


def _bits(left: LoopVariable, right: int) -> int:
    """The width of the dtype of a result."""
    if type(right) in _OF_BITS.values():
        return max(left.bits, right.bits)  # type: ignore[attr-defined]
    return left.bits if -(2**31) <= right < 2**31 else 64


def _wrapped(value: int, bits: int) -> LoopVariable:
    half = 1 << (bits - 1)
    if not -half <= value < half:
        value = (value + half) % (2 * half) - half
    return _OF_BITS[bits](value)


def _quotient(left: Any, right: Any) -> Any:
    """left // right toward zero."""
    if not isinstance(left, int) or not isinstance(right, int):
        return left // right
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: Any, right: Any) -> Any:
    """left % right with the sign of left."""
    if not isinstance(left, int) or not isinstance(right, int):
        return left % right
    return left - right * _quotient(left, right)


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": _quotient,
    "mod": _remainder,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}


def _class(bits: int, dtype: Any) -> type[LoopVariable]:
    members: dict[str, Any] = {"bits": bits, "dtype": dtype}
    for name, compute in _ARITHMETIC.items():
        members[f"__{name}__"] = _arithmetic(compute, False)
        members[f"__r{name}__"] = _arithmetic(compute, True)
    members["__neg__"] = lambda self: _wrapped(-int(self), bits)
    members["__pos__"] = lambda self: self
    members["__invert__"] = lambda self: _wrapped(~int(self), bits)
    members["__truediv__"] = lambda self, other: constant(int(self), dtype) / other
    members["__rtruediv__"] = lambda self, other: other / constant(int(self), dtype)
    return type(f"Int{bits}", (LoopVariable,), members)


_OF_BITS: dict[int, type[LoopVariable]] = {32: _class(32, tl.int32), 64: _class(64, tl.int64)}


def counted(arg1: Any, arg2: Any = None, step: Any = None, **hints: Any) -> Iterator[Any]:
    """`range` and `tl.range` of an interpreted kernel; bounds are integers, constexprs or integer scalars.

    Programs in lockstep whose loops start apart stay together if they take the same number of steps. Hints to a
    compiler, such as num_stages, mean nothing here.
    """
    bounds = [0 if arg2 is None else arg1, arg1 if arg2 is None else arg2, 1 if step is None else step]
    bounds = [bound.value if isinstance(bound, tl.constexpr) else bound for bound in bounds]
    kind = _OF_BITS[64 if any(_is_wide(bound) for bound in bounds) else 32]
    if _differs(bounds[0]) or _differs(bounds[2]):
        return _counted_apart(bounds, kind.dtype)
    return map(kind, builtins.range(*[operator.index(bound) for bound in bounds]))


def _differs(bound: Any) -> bool:
    return isinstance(bound, tl.tensor) and lockstep.differs(bound.handle.data)


def _counted_apart(bounds: list[Any], dtype: Any) -> Iterator[Any]:
    """The numbers of loops whose start or step differs among programs in lockstep: scalars that differ, too."""
    start, stop, step = [
        np.asarray(bound.handle.data if isinstance(bound, tl.tensor) else operator.index(bound)).astype(np.int64)
        for bound in bounds
    ]
    if (step == 0).any():
        raise ValueError("a loop has step 0, expected another number")
    trips = np.maximum(-((start - stop) // step), 0)
    for trip in builtins.range(lockstep.agreed(trips)):
        yield tl.tensor(TensorHandle((start + trip * step).astype(held_as(dtype)), dtype), dtype)


def _is_wide(bound: Any) -> bool:
    if isinstance(bound, (tl.tensor, LoopVariable)):
        return bool(bound.dtype.primitive_bitwidth > 32)
    return not -(2**31) <= operator.index(bound) < 2**31


def loop_over(called: Any) -> Any:
    """The function that a `for` calls for its numbers; it names `called`."""
    if called is builtins.range or called is _COMPILED_RANGE:
        return counted
    return tl.static_range if called is _COMPILED_STATIC_RANGE else called


def visit_For(self: Any, node: ast.For) -> ast.For:
    """`for i in range(n)` becomes `for i in loop_over(range)(n)`."""
    self.generic_visit(node)
    if isinstance(node.iter, ast.Call):
        node.iter.func = ast.Call(ast.Name(NAME, ast.Load()), [node.iter.func], [])
    return node
