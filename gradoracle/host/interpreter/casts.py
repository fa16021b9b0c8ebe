"""Casts among the float dtypes, and between them and integers, with the rounding of a GPU.

Triton's interpreter truncates float32 to bfloat16, casts float64, int and bool to and from the raw bits of a
bfloat16, and rounds wrongly towards zero.  Here every narrowing rounds once, to nearest even, as PTX `cvt.rn` does
(sm_90; on sm_80 an integer passes through float32 on its way to bfloat16).  Casts to 8-bit floats saturate, as
`cvt.rn.satfinite` does, into which Triton compiles them for sm_90 and sm_100.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from triton._C.libtriton import ir
from triton.runtime.interpreter import TensorHandle

from gradoracle.host.interpreter.rounding import from_fp8, to_bf16, to_fp8, toward_zero
from gradoracle.host.interpreter.values import (
    BF16,
    EIGHT_BITS,
    Array,
    CannotWiden,
    held_as,
    in_memory,
    is_widened,
    pack_bf16,
    unpack_bf16,
)

Handle = Any


def cast_impl(self: Any, src: Handle, dst_type: Any) -> Handle:
    """Every cast that keeps to nearest even."""
    target = dst_type.scalar
    if target.name == BF16:
        is_held = src.dtype.name == BF16 and src.data.dtype == held_as(target)
        held = src.data if is_held else to_bf16(src.data)
        return TensorHandle(held, target)
    return TensorHandle(src.data.astype(held_as(target), copy=False), target)


def _cast_to_integer(self: Any, src: Handle, dst_type: Any) -> Handle:
    """Toward zero; 32 and 64 bits saturate, as PTX `cvt.rzi` does."""
    target = dst_type.scalar
    return TensorHandle(saturated(src.data, held_as(target)), target)


def saturated(values: Array, target: np.dtype[Any]) -> Array:
    """Floats to an integer dtype, toward zero; 32 and 64 bits saturate, and a NaN is what a GPU makes of it."""
    if target.itemsize < 4 or values.dtype == np.bool_:
        return values.astype(target)
    bounds = np.iinfo(target)
    wide = values.astype(np.float64)
    below, above = wide <= float(bounds.min) - 1, wide >= float(bounds.max) + 1  # 2**63 - 1 rounds to 2**63
    result = values.astype(target)
    result[below] = bounds.min
    result[above] = bounds.max
    # measured on an H200: 0 where both have 32 bits or fewer, else the top bit alone
    narrow = target.itemsize == 4 and values.itemsize <= 4
    result[np.isnan(wide)] = 0 if narrow else (-bounds.max - 1 if bounds.min else bounds.max // 2 + 1)
    return result


def create_fp_to_fp(self: Any, src: Handle, dst_type: Any, rounding_mode: Any) -> Handle:
    """Casts from and to 8-bit floats, and narrowing casts that round toward zero."""
    target = dst_type.scalar
    data = from_fp8(src.data, src.dtype.name) if src.data.dtype == np.uint8 else src.data
    if is_widened():
        return TensorHandle(data.astype(held_as(target), copy=False), target)
    if target.name in EIGHT_BITS:
        cuts = rounding_mode == ir.ROUNDING_MODE.RTZ
        return TensorHandle(to_fp8(data, target.name, toward_zero=cuts), target)
    if data is not src.data:
        return TensorHandle(data.astype(held_as(target), copy=False), target)
    if rounding_mode == ir.ROUNDING_MODE.RTZ:
        return TensorHandle(toward_zero(src.data, target.name), target)
    return cast_impl(self, src, dst_type)


def create_bitcast(self: Any, src: Handle, dst_type: Any) -> Handle:
    """The same bits read as another dtype of the same width.

    Widened, a float has the bits of its value in the dtype that it names, and bits may be read as a float where that
    loses nothing: powers of two, 0 and infinities, which kernels make for exact scalings.

    Raises:
        CannotWiden: bits with a significand are read as a float.
    """
    target = dst_type.scalar
    if is_widened() and (src.dtype.is_floating() or target.is_floating()):
        return TensorHandle(_reread(src, target), target)
    bits = pack_bf16(src.data) if src.dtype.name == BF16 else src.data
    if target.name == BF16:
        return TensorHandle(unpack_bf16(bits.view(in_memory(target))), target)
    return TensorHandle(bits.view(held_as(target)), target)


def _reread(src: Handle, target: Any) -> Array:
    """A float's bits as an integer, or an integer's as a float, while kernels are widened."""
    name, stored = src.dtype.name, np.ascontiguousarray(src.data)
    if target.name == name:
        return stored
    if src.dtype.is_floating() and not target.is_floating():
        return _bits_of(stored, name).view(held_as(target))
    found = _float_of(stored, target.name) if target.is_floating() and not src.dtype.is_floating() else None
    if found is None or not bool(np.all((found == 0) | np.isinf(found) | (np.frexp(np.abs(found))[0] == 0.5))):
        raise CannotWiden(f"bits of {name} are read as {target.name}")
    return found


def _bits_of(values: Array, name: str) -> Array:
    """The bits of float64 values in the format that they name."""
    if name == BF16:
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    if name in EIGHT_BITS:
        return to_fp8(values, name)
    return values.astype(_NAMED[name])


def _float_of(bits: Array, name: str) -> Array:
    """The values, in float64, of bits in a named format."""
    if name == BF16:
        return (bits.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if name in EIGHT_BITS:
        return from_fp8(bits.view(np.uint8), name).astype(np.float64)
    return bits.view(_NAMED[name]).astype(np.float64)


_NAMED: dict[str, np.dtype[Any]] = {
    "fp16": np.dtype(np.float16),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
}
METHODS: dict[str, Callable[..., Any]] = {
    "cast_impl": cast_impl,
    "create_fp_to_si": _cast_to_integer,
    "create_fp_to_ui": _cast_to_integer,
    "create_fp_to_fp": create_fp_to_fp,
    "create_bitcast": create_bitcast,
    "create_int_to_ptr": create_bitcast,
    "create_ptr_to_int": create_bitcast,
}
