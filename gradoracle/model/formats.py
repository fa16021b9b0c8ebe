"""Number formats: one table with the facts of each, from which every other module derives what it needs.

A new format is one row here. tests/model/test_formats.py compares each row with torch and Triton.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

FEW_BITS = 11
"""A format with at most so many bits has so few significands that the errors of many values are those of a few."""
_FLOAT64_SUBNORMAL = 2.0**-1074


@dataclass(frozen=True)
class Format:
    """A floating-point number format.

    Attributes:
        name: the name in contracts, in case lines and on the command line; that of ``dtype`` if it has one.
        bits: the bits of the significand, the leading one included.
        lowest: the exponent of the smallest normal number, 2^lowest.
        largest: the largest finite number.
        dtype: the dtype of torch; None if tensors cannot hold it.
        triton: the name of the type in Triton; "" if there is none.
        preset: the contract of kernels with inputs in this format that declare none; "" if no case has such inputs.
        flushes: whether a GPU may replace its subnormal numbers by 0.
        specials: which bit patterns are no finite number. "ieee": those with the largest exponent, infinities and NaN;
            "nan": the largest pattern alone, a NaN; "zero": that of -0 alone, a NaN; "": none.
        saturates: whether casts may give the largest number where a value is larger or infinite. PyTorch's casts to
            float8_e4m3fn and Triton's to both 8-bit formats (PTX ``cvt.rn.satfinite``) do; PyTorch's to float8_e5m2
            give infinities.
        parts: the format whose numbers are summed to one of this; "" if there is none.
        aligned: the exponent at which tensor cores cut products of a block, next to the largest of them; 0: beyond what
            float32 holds.
    """

    name: str
    bits: int
    lowest: int
    largest: float
    dtype: torch.dtype | None = None
    triton: str = ""
    preset: str = ""
    flushes: bool = False
    specials: str = "ieee"
    saturates: bool = False
    parts: str = ""
    aligned: int = 0

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of rounding a normal number to nearest."""
        return 2.0**-self.bits

    @property
    def smallest_normal(self) -> float:
        """The smallest positive normal number."""
        return 2.0**self.lowest

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number, which is the spacing of all subnormal ones."""
        return max(2.0**self.lowest * 2.0 ** (1 - self.bits), _FLOAT64_SUBNORMAL)

    @property
    def has_infinities(self) -> bool:
        """Whether some bit patterns are infinite."""
        return self.specials == "ieee"

    @property
    def is_few(self) -> bool:
        """Whether it has few significands (``FEW_BITS``)."""
        return self.bits <= FEW_BITS

    @property
    def largest_pattern(self) -> int:
        """The bits of the largest number."""
        significand, exponent = math.frexp(self.largest)
        return (exponent - self.lowest << self.bits - 1) + int((2 * significand - 1) * 2.0 ** (self.bits - 1))

    @property
    def width(self) -> int:
        """The bits of a number in memory."""
        highest = math.frexp(self.largest)[1] - 1  # exponent of the largest number; infinities have one more
        exponents = highest - self.lowest + 2 + self.has_infinities
        return self.bits + math.ceil(math.log2(exponents))

    def encoded(self, numbers: NDArray[np.float64], *, saturates: bool | None = None) -> NDArray[np.uint64]:
        """The bit patterns of the nearest numbers, ties to even; of a format narrower than float64.

        Args:
            numbers: float64 of any shape; a NaN has the pattern of all ones below the sign, which is kept.
            saturates: whether numbers beyond the largest give the largest. By default they give what PyTorch's casts
                do: infinities if there are any, NaN where -0 is one, and else the largest.
        """
        fraction, width = self.bits - 1, self.width
        shift, sign = np.uint64(52 - fraction), np.uint64(width - 1)
        raw = np.ascontiguousarray(numbers).view(np.uint64)
        magnitude = raw & np.uint64((1 << 63) - 1)
        odd = (magnitude >> shift) & np.uint64(1)
        half = np.uint64((1 << (51 - fraction)) - 1)
        found = ((magnitude + half + odd) >> shift) - np.uint64((1023 + self.lowest - 1) << fraction)
        small = magnitude < np.uint64((1023 + self.lowest) << 52)
        if small.any():
            steps = np.rint(np.where(small, np.abs(numbers), 0.0) * 2.0 ** (fraction - self.lowest))
            found = np.where(small, steps.astype(np.uint64), found)
        most = self.largest_pattern + (self.has_infinities and not saturates)  # the next pattern is infinity
        nan = np.isnan(numbers)
        if self.specials == "zero" and not saturates:
            nan |= found > np.uint64(most)
        found = np.minimum(found, np.uint64(most))
        if nan.any():
            found = np.where(nan, np.uint64((1 << width - 1) - 1), found)
        found = found | ((raw >> np.uint64(63)) << sign)
        if self.specials != "zero":
            return found
        found = np.where(found == np.uint64(1) << sign, np.uint64(0), found)  # there is no -0
        return np.where(nan, np.uint64(1) << sign, found)

    def decoded(self) -> NDArray[np.float64]:
        """The numbers of all bit patterns in order, float64 [2^width]; of a format of few bits."""
        patterns, fraction = np.arange(1 << self.width), self.bits - 1
        size = patterns & (1 << self.width - 1) - 1
        exponent, rest = size >> fraction, size & (1 << fraction) - 1
        significand = rest + (exponent > 0) * (1 << fraction)
        numbers = np.ldexp(1.0 * significand, np.maximum(exponent, 1) + self.lowest - 1 - fraction)
        beyond = size - self.largest_pattern
        if self.has_infinities:
            numbers = np.where(beyond == 1, np.inf, numbers)
        if self.specials:
            numbers = np.where(beyond > self.has_infinities, np.nan, numbers)
        numbers = np.where(patterns == size, numbers, -numbers)
        return np.where((patterns > size) & (size == 0), np.nan, numbers) if self.specials == "zero" else numbers


_FLOAT32 = (2 - 2.0**-23) * 2.0**127
_ROWS = (
    Format("float32", 24, -126, _FLOAT32, torch.float32, "fp32", "ieee32", flushes=True),
    Format("bfloat16", 8, -126, (2 - 2.0**-7) * 2.0**127, torch.bfloat16, "bf16", "bf16", flushes=True),
    Format("float16", 11, -14, 65504.0, torch.float16, "fp16", "fp16"),
    Format("float64", 53, -1022, (2 - 2.0**-52) * 2.0**1023, torch.float64, "fp64", "float64"),
    Format(
        "float8_e4m3fn", 4, -6, 448.0, torch.float8_e4m3fn, "fp8e4nv", "e4m3", specials="nan", saturates=True,
        aligned=13,
    ),
    Format("float8_e5m2", 3, -14, 57344.0, torch.float8_e5m2, "fp8e5", "e5m2", saturates=True, aligned=13),
    # of AMD and of older Triton: in kernels only
    Format("float8_e4m3fnuz", 4, -7, 240.0, torch.float8_e4m3fnuz, "fp8e4b8", specials="zero"),
    Format("float8_e5m2fnuz", 3, -15, 57344.0, torch.float8_e5m2fnuz, "fp8e5b16", specials="zero"),
    Format("float8_e4b15", 4, -14, 1.875, triton="fp8e4b15", specials="", saturates=True),
    # packed, two to a byte, in `tl.dot_scaled` only
    Format("float4_e2m1fn", 2, 0, 6.0, specials="", saturates=True),
    # operands of products on tensor cores
    Format("tf32", 11, -126, (2 - 2.0**-10) * 2.0**127, flushes=True),
    Format("tf32x3", 22, -126, _FLOAT32, flushes=True),
    # below 2^-110 three parts hold fewer bits, as bfloat16 ends at 2^-133; above 2^111 kernels, which find the nearest
    # part by 65537 times a number, overflow
    Format("bf16x6", 24, -110, 2.0**111, parts="bfloat16"),
)  # fmt: skip
FORMATS: Mapping[str, Format] = MappingProxyType({each.name: each for each in _ROWS})
DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {each.name: each.dtype for each in _ROWS if each.preset and each.dtype is not None}
)
"""The dtypes in which kernels are checked, by name."""
OF_DTYPES: Mapping[torch.dtype, Format] = MappingProxyType({each.dtype: each for each in _ROWS if each.dtype})
"""The formats of torch's dtypes."""
OF_TRITON: Mapping[str, Format] = MappingProxyType({each.triton: each for each in _ROWS if each.triton})
"""The formats by the name of Triton's type."""


def is_in_range(tensor: torch.Tensor) -> bool:
    """Whether a float tensor, of any dtype, has no element that overflow gives: infinite, NaN or saturated."""
    held = OF_DTYPES.get(tensor.dtype)
    size = tensor.detach().to(torch.float64).abs()
    return bool((size < held.largest if held is not None and held.saturates else size.isfinite()).all())
