"""Arithmetic, comparison, selection and functions of a kernel's own, element by element, as a GPU rounds them.

Triton's interpreter computes bfloat16 on its raw 16-bit integers, lacks bfloat16 constants before 3.9, rounds a
fused multiply-add twice before 3.9, propagates NaN through minimum and maximum before 3.8 where PTX `min`, `max`
return the number, and types a comparison by its operands, so that casting one misreads its bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_semantic

from gradoracle.host.interpreter import functions, lockstep
from gradoracle.host.interpreter.rounding import add_to_odd, fused_multiply_add, to_bf16
from gradoracle.host.interpreter.values import BF16, EIGHT_BITS, Array, CannotInterpret, held_as, is_widened

Handle = Any
_ON_BITS = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)
_STOCK_BINARY = InterpreterBuilder.binary_op


def binary_op(self: Any, lhs: Handle, rhs: Handle, op: Callable[..., Array]) -> Handle:
    """Any operation on two operands without a replacement of its own; bfloat16 is rounded once."""
    if lhs.dtype.name != BF16:
        return _STOCK_BINARY(self, lhs, rhs, op)
    data = op(lhs.data, rhs.data)
    return TensorHandle(data if data.dtype == np.bool_ else to_bf16(data), lhs.dtype)


def require_wide(operand: Handle, arithmetic: bool) -> None:
    """Check that a block holds numbers, and not the bits of 8-bit floats, which are only cast and multiplied in dots.

    Raises:
        TypeError: bits are computed with; Triton does not compile that.
        CannotInterpret: bits are compared; a GPU runs it.
    """
    if operand.dtype.name in EIGHT_BITS:
        what = f"{'arithmetic on' if arithmetic else 'a comparison of'} {operand.dtype.name}"
        raise (TypeError if arithmetic else CannotInterpret)(f"{what}; expected a cast to float32 before it")


def unary_op(self: Any, arg: Handle, op: Callable[..., Array]) -> Handle:
    """Any operation on one operand; bfloat16 is rounded once."""
    data = op(arg.data)
    return TensorHandle(to_bf16(data) if arg.dtype.name == BF16 else data, arg.dtype)


def _float_arithmetic(op: Callable[..., Array]) -> Callable[..., Handle]:
    def create(self: Any, lhs: Handle, rhs: Handle) -> Handle:
        require_wide(lhs, True)
        data = op(lhs.data, rhs.data)
        return TensorHandle(to_bf16(data) if lhs.dtype.name == BF16 else data, lhs.dtype)

    return create


def _integer_arithmetic(op: Callable[..., Array]) -> Callable[..., Handle]:
    def create(self: Any, lhs: Handle, rhs: Handle) -> Handle:
        left, right = lhs.data, rhs.data
        if left.dtype != right.dtype or (left.dtype == np.bool_ and op not in _ON_BITS):
            return _STOCK_BINARY(self, lhs, rhs, op)
        return TensorHandle(op(left, right), lhs.dtype)

    return create


def _function(name: str) -> Callable[..., Handle]:
    def create(self: Any, arg: Handle) -> Handle:
        return _rounded(functions.evaluate(name, arg.data), arg.dtype.scalar)

    return create


def create_rsqrt(self: Any, arg: Handle) -> Handle:
    """1 / sqrt, rounded once."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return _rounded(1.0 / np.sqrt(arg.data.astype(np.float64)), arg.dtype.scalar)


def _rounded(wide: Array, dtype: Any) -> Handle:
    """float64 results rounded once to a float dtype."""
    with np.errstate(over="ignore"):
        return TensorHandle(to_bf16(wide) if dtype.name == BF16 else wide.astype(held_as(dtype), copy=False), dtype)


def _float_choice(op: Callable[..., Array]) -> Callable[..., Handle]:
    def create(self: Any, lhs: Handle, rhs: Handle) -> Handle:
        require_wide(lhs, False)
        return TensorHandle(chosen(op, lhs.data, rhs.data), lhs.dtype)  # one of its operands: nothing to round

    return create


def chosen(op: Callable[..., Array], left: Array, right: Array) -> Array:
    """The larger or smaller of two floats, where -0 is smaller than 0: numpy's choice depends on the processor."""
    found = op(left, right)
    if not np.all(found):
        total = left + right if op in (np.fmax, np.maximum) else -(-left - right)
        found = np.where((left == 0) & (right == 0), total, found)
    return found


def _comparison(op: Callable[..., Array]) -> Callable[..., Handle]:
    def create(self: Any, lhs: Handle, rhs: Handle) -> Handle:
        require_wide(lhs, False)
        return TensorHandle(op(lhs.data, rhs.data), tl.int1)

    return create


def create_clampf(self: Any, arg: Handle, lo: Handle, hi: Handle, propagate_nans: Any) -> Handle:
    """min(max(arg, lo), hi): a NaN survives only if requested."""
    larger, smaller = (np.fmax, np.fmin) if propagate_nans == ir.PROPAGATE_NAN.NONE else (np.maximum, np.minimum)
    return TensorHandle(chosen(smaller, chosen(larger, arg.data, lo.data), hi.data), arg.dtype)


def create_fabs(self: Any, arg: Handle) -> Handle:
    """The sign bit cleared."""
    require_wide(arg, True)
    return TensorHandle(np.abs(arg.data), arg.dtype)


def create_fma(self: Any, x: Handle, y: Handle, z: Handle) -> Handle:
    """x * y + z rounded once."""
    name = z.dtype.name
    if name in (BF16, "fp16") and not is_widened():
        product = x.data.astype(np.float64) * y.data.astype(np.float64)  # exact: at most 22 bits
        total = add_to_odd(product, z.data.astype(np.float64))
        return TensorHandle(to_bf16(total) if name == BF16 else total.astype(np.float16), z.dtype)
    return TensorHandle(fused_multiply_add(x.data, y.data, z.data), z.dtype)


def _constant(dtype: Any) -> Callable[..., Handle]:
    """A constant; like in Triton's own builder it passes through float32, unless widened."""

    def get(self: Any, value: float) -> Handle:
        data = np.array([value], np.float64 if is_widened() else np.float32)
        held = to_bf16(data) if dtype is tl.bfloat16 else data.astype(held_as(dtype), copy=False)
        return TensorHandle(held, dtype)

    return get


def mapped(scalar_function: Callable[..., Any], *args: Any, pack: Any = 1, **_: Any) -> Any:
    """Replaces `tl.map_elementwise`: one tensor, or a tuple of them, of the broadcast shape of the arguments.

    Args:
        scalar_function: takes `pack` scalars of each argument in turn, and returns as many of each result.
        args: tensors of the language, scalars among them.
        pack: the number of elements of a call: neighbours in row-major order; on a GPU, neighbours that a thread holds.
    """
    tensors = [each if isinstance(each, tl.tensor) else interpreter_semantic.to_tensor(each) for each in args]
    if any(lockstep.differs(each.handle.data) for each in tensors):
        raise lockstep.OneByOne
    count = int(getattr(pack, "value", pack))
    shape = np.broadcast_shapes(*([int(size) for size in each.shape] for each in tensors))
    elements = [
        np.broadcast_to(each.handle.data.reshape([int(size) for size in each.shape]), shape).reshape(-1)
        for each in tensors
    ]
    if len(elements[0]) % count:
        raise ValueError(f"pack is {count}: expected a divisor of the {len(elements[0])} elements")
    types = [each.dtype.scalar for each in tensors]
    found: list[list[Any]] = []
    single = True
    for start in range(0, len(elements[0]), count):
        scalars = [
            _scalar(data[place], kind)
            for data, kind in zip(elements, types, strict=True)
            for place in range(start, start + count)
        ]
        results = scalar_function(*scalars)
        single = not isinstance(results, (tuple, list, tl.tuple))
        found.append([results] if single else list(results))
    outputs = [
        _tensor([each for results in found for each in results[first : first + count]], shape)
        for first in range(0, len(found[0]), count)
    ]
    return outputs[0] if single else tuple(outputs)


def _scalar(value: Any, dtype: Any) -> Any:
    return tl.tensor(TensorHandle(np.array([value], held_as(dtype)), dtype), dtype)


def _tensor(elements: list[Any], shape: tuple[int, ...]) -> Any:
    """The scalars that calls returned, as a tensor of their dtype."""
    scalars = [each if isinstance(each, tl.tensor) else interpreter_semantic.to_tensor(each) for each in elements]
    dtype = scalars[0].dtype.scalar
    data = np.array([each.handle.data.item() for each in scalars], held_as(dtype)).reshape(shape or (1,))
    return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(shape)) if shape else dtype)


METHODS: dict[str, Callable[..., Any]] = {
    "binary_op": binary_op,
    "unary_op": unary_op,
    "create_fadd": _float_arithmetic(np.add),
    "create_fsub": _float_arithmetic(np.subtract),
    "create_fmul": _float_arithmetic(np.multiply),
    "create_fdiv": _float_arithmetic(np.divide),
    "create_precise_divf": _float_arithmetic(np.divide),
    "create_frem": _float_arithmetic(np.fmod),
    "create_add": _integer_arithmetic(np.add),
    "create_sub": _integer_arithmetic(np.subtract),
    "create_mul": _integer_arithmetic(np.multiply),
    "create_and": _integer_arithmetic(np.bitwise_and),
    "create_or": _integer_arithmetic(np.bitwise_or),
    "create_xor": _integer_arithmetic(np.bitwise_xor),
    "create_minimumf": _float_choice(np.minimum),
    "create_maximumf": _float_choice(np.maximum),
    "create_minnumf": _float_choice(np.fmin),
    "create_maxnumf": _float_choice(np.fmax),
    "create_clampf": create_clampf,
    "create_fabs": create_fabs,
    "create_fma": create_fma,
    "create_rsqrt": create_rsqrt,
    **{f"create_{name}": _function(name) for name in ("exp", "exp2", "log", "log2", "sin", "cos", "erf")},
    "get_fp16": _constant(tl.float16),
    "get_fp32": _constant(tl.float32),
    "create_icmpEQ": _comparison(np.equal),
    "create_icmpNE": _comparison(np.not_equal),
    "create_fcmpOEQ": _comparison(np.equal),
    "create_fcmpUNE": _comparison(np.not_equal),
    **{
        f"create_{kind}{name}": _comparison(op)
        for name, op in {"LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal}.items()
        for kind in ("icmpS", "icmpU", "fcmpO")
    },
}
NEW_METHODS: dict[str, Callable[..., Any]] = {
    "get_bf16": _constant(tl.bfloat16)
}  # Triton before 3.9 has no bfloat16 constants
