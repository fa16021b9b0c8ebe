"""Rounding of numpy arrays to the formats that numpy lacks: bfloat16 and TF32.

A bfloat16 or TF32 value is held as the float32 that equals it: both formats are float32 with the low 16 or 13
bits of the significand zero, so holding is exact and every subnormal, infinity and sign survives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gradoracle.execution.interpreter.values import is_widened

Float32Array = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

_BF16_KEPT = np.uint32(0xFFFF0000)
_BF16_HALF_BELOW = np.uint32(0x7FFF)
_BF16_SHIFT = np.uint32(16)
_TF32_KEPT = np.uint32(0xFFFFE000)
_TF32_HALF = np.uint32(0x1000)
_ONE = np.uint32(1)
_FORMATS: dict[str, type[np.floating[Any]]] = {"fp16": np.float16, "fp32": np.float32}
_BF16_NAN = np.uint32(0x7FFF0000)


def to_bf16(values: Array) -> Float32Array:
    """Round to the nearest bfloat16, ties to even, with one rounding whatever the input.

    `values` is an array of any shape in float16, float32, float64, bool or any integer type.  Returned are float32
    values of that shape which bfloat16 can hold.  Overflow gives an infinity, every NaN the canonical NaN 0x7FFF,
    as PTX `cvt.rn.bf16.f32` does.  Widened, the values stay, in float64.
    """
    if is_widened():
        return values.astype(np.float64, copy=False)
    return _nearest_bf16(values)


def nearest(values: Array, name: str) -> Array:
    """float64 values rounded once to a float dtype that Triton names, and held in float64; others stay."""
    if values.dtype != np.float64:
        return values
    if name == "bf16":
        return _nearest_bf16(values).astype(np.float64)
    return values.astype(_FORMATS[name]).astype(np.float64) if name in _FORMATS else values


def _nearest_bf16(values: Array) -> Float32Array:
    if values.dtype != np.float32:
        values = _to_float32_odd(values)
    bits = values.view(np.uint32)
    rounded = bits >> _BF16_SHIFT
    rounded &= _ONE
    rounded += _BF16_HALF_BELOW
    rounded += bits
    rounded &= _BF16_KEPT
    nan = np.isnan(values)
    if nan.any():
        rounded = np.where(nan, _BF16_NAN, rounded)
    return rounded.view(np.float32)


def toward_zero(values: Array, fmt: str) -> Array:
    """Round toward zero to `fmt`, one of bf16 (held as float32), fp16, fp32; `values` is float32 or float64."""
    return values if is_widened() else cut(values, fmt)


def cut(values: Array, fmt: str) -> Array:
    """As ``toward_zero``, widened or not."""
    if fmt == "bf16":
        values = cut(values, "fp32") if values.dtype == np.float64 else values
        kept = (values.view(np.uint32) & _BF16_KEPT).view(np.float32)
        return np.where(np.isnan(values), np.float32(np.nan), kept)
    target, unsigned = (np.float16, np.uint16) if fmt == "fp16" else (np.float32, np.uint32)
    nearest = np.asarray(values.astype(target))
    away = np.abs(nearest.astype(values.dtype)) > np.abs(values)
    return (nearest.view(unsigned) - away.astype(unsigned)).view(target)


def to_tf32_truncated(values: Float32Array) -> Float32Array:
    """What a tensor core reads from a raw float32 register: the low 13 bits are ignored."""
    return (values.view(np.uint32) & _TF32_KEPT).view(np.float32)


def to_tf32_nearest_away(values: Float32Array) -> Float32Array:
    """PTX `cvt.rna.tf32.f32`: to the nearest TF32, ties away from zero; infinities and NaN stay what they are."""
    rounded = ((values.view(np.uint32) + _TF32_HALF) & _TF32_KEPT).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


def add_to_odd(left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """left + right in float64 rounded to odd, so that a later rounding to 50 bits or fewer is the only one.

    An inexact sum whose last bit is even moves one step towards the exact sum (Boldo and Melquiond, "Emulation of
    FMA and correctly rounded sums", IEEE Trans. Computers 57(4), 2008); the error comes from Knuth's two-sum.
    """
    total = np.asarray(left + right)
    virtual = total - left
    error = (left - (total - virtual)) + (right - virtual)
    even = (total.view(np.int64) & 1) == 0
    inexact = np.isfinite(total) & (error != 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact & even, (total.view(np.int64) + step).view(np.float64), total)


def _to_float32_odd(values: Array) -> Float32Array:
    """float32 with the last bit odd where inexact, so that rounding it to bfloat16 equals rounding `values` once."""
    if values.dtype == np.float16:
        return values.astype(np.float32)
    wide = _to_float64_sticky(values) if values.dtype in (np.int64, np.uint64) else values.astype(np.float64)
    nearest = np.asarray(wide.astype(np.float32))
    bits = nearest.view(np.uint32) - (np.abs(nearest.astype(np.float64)) > np.abs(wide)).astype(np.uint32)
    inexact = nearest.astype(np.float64) != wide
    return (bits | inexact.astype(np.uint32)).view(np.float32)


def _to_float64_sticky(integers: Array) -> npt.NDArray[np.float64]:
    """64-bit integers to float64, anything below the 53rd bit folded into that bit: exact enough for 8 bits."""
    kind = integers.dtype.type
    mask = kind(0x7FF)
    folded = (integers & ~mask) | np.where((integers & mask) != 0, kind(0x800), kind(0))
    exact = integers < kind(1 << 53)
    if integers.dtype == np.int64:
        exact &= integers > kind(-(1 << 53))
    return np.where(exact, integers, folded).astype(np.float64)
