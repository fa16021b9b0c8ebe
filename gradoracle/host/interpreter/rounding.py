"""Rounding of numpy arrays to the formats that numpy lacks: bfloat16, TF32 and those of 8 bits.

A bfloat16 or TF32 value is held as the float32 that equals it: both formats are float32 with the low 16 or 13
bits of the significand zero, so holding is exact and every subnormal, infinity and sign survives. An 8-bit float is
held as its bits.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from gradoracle.host.interpreter.values import EIGHT_BITS, is_widened
from gradoracle.model.formats import OF_TRITON

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
    if name in EIGHT_BITS:
        return from_fp8(to_fp8(values, name), name).astype(np.float64)
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


@functools.cache
def _fp8_values(name: str) -> Float32Array:
    return OF_TRITON[name].decoded().astype(np.float32)


def from_fp8(bits: Array, name: str) -> Float32Array:
    """The values of 8-bit patterns in a format that Triton names; its own interpreter gets subnormals and NaN wrong."""
    return _fp8_values(name)[bits]


def to_fp8(values: Array, name: str, *, toward_zero: bool = False) -> npt.NDArray[np.uint8]:
    """The bits of the nearest numbers, ties to even, in an 8-bit format that Triton names.

    As PTX `cvt.rn.satfinite`: larger numbers and infinities give the largest number of their sign, NaN is all ones
    below the sign. Each value is rounded once.

    Args:
        values: floats of any dtype and shape.
        name: the format.
        toward_zero: cut instead of rounding to nearest.
    """
    format_ = OF_TRITON[name]
    wide = values.astype(np.float64)
    bits = format_.encoded(wide, saturates=True).astype(np.uint8)
    bits = np.where(np.isnan(wide) & (format_.specials == "nan" or format_.specials == "ieee"), np.uint8(0x7F), bits)
    if not toward_zero:
        return bits
    return bits - (np.abs(from_fp8(bits, name)) > np.abs(wide)).astype(np.uint8)


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
    total, error = _two_sum(left, right)
    total = np.asarray(total)
    even = (total.view(np.int64) & 1) == 0
    inexact = np.isfinite(total) & (error != 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact & even, (total.view(np.int64) + step).view(np.float64), total)


def fused_multiply_add(x: Array, y: Array, z: Array) -> Array:
    """x * y + z rounded once, of broadcast arrays of one dtype, float32 or float64.

    Compiled code that calls it has the processor's own instruction (``machine_code.compile_to_fma``).
    """
    if z.dtype == np.float32:
        return _fma_float32(x, y, z)
    if splits(x, y, z):
        return fma_of_parts(x, split(x), y, split(y), z)
    x, y, z = np.broadcast_arrays(x, y, z)
    return np.array([_fma_exactly(*each) for each in zip(x.flat, y.flat, z.flat, strict=True)]).reshape(x.shape)


_LARGE, _SMALL = 2.0**480, 2.0**-450
_SPLITTER = 2.0**27 + 1.0


def splits(x: Array, y: Array, z: Array) -> bool:
    """Whether float64 factors can be split: no part overflows, and the error of no product lies below all numbers."""
    sizes = [np.abs(each) for each in (x, y)]
    return all(each.max(initial=0.0) < _LARGE for each in (*sizes, np.abs(z))) and all(
        not ((each < _SMALL) & (each != 0)).any() for each in sizes
    )


def split(x: Array) -> tuple[Array, Array]:
    """Two halves of the bits of float64 numbers (Veltkamp)."""
    scaled = x * _SPLITTER
    high = scaled - (scaled - x)
    return high, x - high


def fma_of_parts(x: Array, x_parts: tuple[Array, Array], y: Array, y_parts: tuple[Array, Array], z: Array) -> Array:
    """x * y + z in float64, of the factors' parts, by error-free transformations (sources: ``add_to_odd``)."""
    (x_high, x_low), (y_high, y_low) = x_parts, y_parts
    product = x * y
    product_low = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    low, low_error = _two_sum(z, product_low)
    high, high_error = _two_sum(product, low)
    rest = low_error + high_error
    found = np.asarray(high + rest)
    lost = (high - found) + rest
    # Rounded twice is rounded once, unless the second rounding met the middle between two numbers.
    risky = (lost != 0) & ((found + 2.0 * lost) - found == 2.0 * lost)
    if risky.any():
        found[risky] = high[risky] + add_to_odd(low_error[risky], high_error[risky])
    return found


def _fma_float32(x: Array, y: Array, z: Array) -> Array:
    product = x.astype(np.float64) * y.astype(np.float64)  # exact: at most 48 bits
    total = np.asarray(product + z)
    with np.errstate(over="ignore"):
        found = np.asarray(total.astype(np.float32))
    # Twice rounded is once rounded, unless the first rounding ends half way between two float32.
    risky = (total.view(np.int64) & 0x1FFFFFFF) == 0x10000000
    risky |= np.abs(total) < 2.0**-125
    if risky.any():
        onto = np.broadcast_to(z, total.shape)[risky].astype(np.float64)
        found[risky] = add_to_odd(np.broadcast_to(product, total.shape)[risky], onto).astype(np.float32)
    return found


def _two_sum(left: Array, right: Array) -> tuple[Array, Array]:
    """left + right, and what rounding took from it (Knuth)."""
    total = left + right
    virtual = total - left
    return total, (left - (total - virtual)) + (right - virtual)


def _fma_exactly(x: float, y: float, z: float) -> float:
    plain = float(x) * float(y) + float(z)
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
        return plain
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return plain  # the sign of zero is that of the plain sum
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


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
