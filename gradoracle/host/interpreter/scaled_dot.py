"""`tl.dot_scaled` as Triton compiles it for sm_90: operands times their scales in bfloat16, and a dot of bfloat16.

Triton's own interpreter has none. sm_90 multiplies no microscaled operands, so Triton (DecomposeScaledBlocked.cpp)
casts operands to bfloat16 (float16 if one of them is float16), multiplies each by the scale of its block of 32, rounds
that to the same format, and multiplies by `tl.dot`. All 8-bit and 4-bit floats are exact in bfloat16, and so are their
products with powers of two that are not too small. A scale of e8m0 is shifted into the exponent of a bfloat16: its
code 0, which means 2^-127, becomes 0; its code 255, NaN, makes a NaN of the block unless the kernel asks for fast_math.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from triton._C.libtriton import ir
from triton.language.core import constexpr
from triton.runtime.interpreter import TensorHandle

from gradoracle.host.interpreter.accumulation import chained, in_blocks
from gradoracle.host.interpreter.dot import CORES
from gradoracle.host.interpreter.rounding import from_fp8, to_bf16
from gradoracle.host.interpreter.values import BF16, Array, is_widened
from gradoracle.model.formats import FORMATS

Handle = Any
_KINDS = ir.ScaleDotElemTypeTY
_TRITON = {_KINDS.E4M3: "fp8e4nv", _KINDS.E5M2: "fp8e5"}
_NIBBLES = FORMATS["float4_e2m1fn"].decoded()
_NAN = 255
_BIAS = 127


def create_dot_scaled(
    self: Any,
    lhs: Handle,
    lhs_scale: Handle | None,
    lhs_format: Any,
    rhs: Handle,
    rhs_scale: Handle | None,
    rhs_format: Any,
    fast_math: bool,
    lhs_k_pack: bool,
    rhs_k_pack: bool,
    acc: Handle,
) -> Handle:
    """lhs [.. M K] @ rhs [.. K N] + acc [.. M N], with scales [.. M K/32] and [.. N K/32]; e2m1 is two to a byte."""
    left = _operand(lhs, lhs_format, axis=-1 if lhs_k_pack else -2)
    right = _operand(rhs, rhs_format, axis=-2 if rhs_k_pack else -1).swapaxes(-1, -2)  # [.. N K]
    is_half = _KINDS.FP16 in (lhs_format, rhs_format)
    left = _scaled(left, lhs_scale, fast_math, is_half)
    right = _scaled(right, rhs_scale, fast_math, is_half).swapaxes(-1, -2)
    if is_widened():
        return TensorHandle(chained(left, right, acc.data), acc.dtype)
    return TensorHandle(in_blocks(left, right, acc.data, CORES["fp16" if is_half else BF16]), acc.dtype)


def _operand(handle: Handle, kind: Any, axis: int) -> Array:
    """The numbers of an operand, float64; e2m1 has the first of two in the low bits, along ``axis``."""
    data = handle.data
    if kind == _KINDS.E2M1:
        pairs = _NIBBLES[np.stack([data & 15, data >> 4], -1)]
        pairs = pairs if axis == -1 else pairs.swapaxes(-1, -2)
        shape = list(data.shape)
        shape[axis] *= 2
        return pairs.reshape(shape)
    if kind in _TRITON and data.dtype == np.uint8:
        return from_fp8(data, _TRITON[kind]).astype(np.float64)
    return data.astype(np.float64)


def _scaled(values: Array, scale: Handle | None, fast_math: bool, is_half: bool) -> Array:
    """values [.. rows K] times the scales of their blocks [.. rows K/32], rounded to what the dot multiplies."""
    if scale is not None:
        codes = np.repeat(scale.data, values.shape[-1] // scale.data.shape[-1], -1)
        values = values * _factors(codes, scale.dtype.name, fast_math, is_half)
    if is_widened():
        return values
    if is_half:
        return values.astype(np.float16).astype(np.float32)
    return to_bf16(values)


def _factors(codes: Array, name: str, fast_math: bool, is_half: bool) -> Array:
    """The numbers that codes of scales mean: e8m0 in bytes, or 8-bit floats."""
    if name == "fp8e4nv":
        return codes if is_widened() else from_fp8(codes, name).astype(np.float64)
    found = np.ldexp(1.0, codes.astype(np.int64) - _BIAS)
    if not is_widened():
        found[codes == 0] = 0.0
        found = found.astype(np.float16).astype(np.float64) if is_half else found
    found[codes == _NAN] = np.inf if fast_math and not is_widened() else np.nan
    return found


def of_words(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Triton's check of a scaled dot, which expects formats as constants of the compiler; a kernel gives strings."""

    def dot_scaled(
        semantic: Any, lhs: Any, lhs_scale: Any, lhs_format: Any, rhs: Any, rhs_scale: Any, rhs_format: Any, *rest: Any
    ) -> Any:
        left, right = (each if isinstance(each, constexpr) else constexpr(each) for each in (lhs_format, rhs_format))
        return stock(lhs, lhs_scale, left, rhs, rhs_scale, right, *rest)

    return dot_scaled


def bytes_as_they_are(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Bytes of operands stay bytes, which have a meaning in every format, widened or not."""

    def _bitcast_to_fp_type(semantic: Any, val: Any, float_format: str) -> Any:
        return val if val.dtype.name == "uint8" and float_format in ("e4m3", "e5m2") else stock(val, float_format)

    return _bitcast_to_fp_type


NEW_METHODS: dict[str, Callable[..., Any]] = {"create_dot_scaled": create_dot_scaled}
