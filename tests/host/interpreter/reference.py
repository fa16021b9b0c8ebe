"""What a GPU computes, worked out with fractions and torch's own CPU operations: nothing of gradoracle, no numpy."""

from __future__ import annotations

import math
from fractions import Fraction

import torch

# precision in bits, smallest exponent of a normal number, largest finite number
FORMATS = {
    torch.float16: (11, -14, Fraction(65504)),
    torch.bfloat16: (8, -126, Fraction((2**8 - 1) * 2**120)),
    torch.float32: (24, -126, Fraction((2**24 - 1) * 2**104)),
    torch.float64: (53, -1022, Fraction((2**53 - 1) * 2**971)),
}


def nearest(value: Fraction, dtype: torch.dtype) -> float:
    """The float of `dtype` nearest to an exact value, ties to even, with gradual underflow and overflow."""
    precision, smallest, largest = FORMATS[dtype]
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = max(_floor_log2(size), smallest)
    unit = Fraction(2) ** (exponent - precision + 1)
    rounded = round(size / unit) * unit  # Python rounds a fraction half to even
    result = float(rounded) if rounded <= largest else math.inf
    return result if value > 0 else -result


def toward_zero(value: Fraction, dtype: torch.dtype) -> float:
    """The float of `dtype` next to an exact value on the side of zero."""
    precision, smallest, largest = FORMATS[dtype]
    size = abs(value)
    if size == 0:
        return 0.0
    unit = Fraction(2) ** (max(_floor_log2(size), smallest) - precision + 1)
    result = float(min(math.floor(size / unit) * unit, largest))
    return result if value > 0 else -result


def _floor_log2(size: Fraction) -> int:
    guess = size.numerator.bit_length() - size.denominator.bit_length()
    return guess if Fraction(2) ** guess <= size else guess - 1


def exponent(value: Fraction, smallest: int) -> int:
    """floor(log2 |value|), at least that of the smallest normal number."""
    return max(_floor_log2(abs(value)), smallest)


def tensor_core(
    left: list[float], right: list[float], onto: float, *, block: int, least: tuple[int, int] = (-126, -126),
    fraction: int = 25, into: torch.dtype = torch.float32,
) -> float:  # fmt: skip
    """The dot of two rows of finite numbers, added to ``onto``, as a tensor core of sm_90 adds it up.

    The terms of a block are cut to multiples of 2^(e - fraction), where e is the largest exponent among them: that of
    a product is the sum of those of its operands.
    """
    total = Fraction(onto)
    for start in range(0, len(left), block):
        places = slice(start, start + block)
        pairs = [(Fraction(a), Fraction(b)) for a, b in zip(left[places], right[places], strict=True)]
        exponents = [exponent(a, least[0]) + exponent(b, least[1]) for a, b in pairs if a * b]
        lowest = FORMATS[into][1]
        unit = Fraction(2) ** (max([exponent(total, lowest) if total else lowest, *exponents]) - fraction)
        exact = sum(math.trunc(term / unit) for term in [total, *(a * b for a, b in pairs)]) * unit
        rounded = nearest(exact, into) if into == torch.float16 else toward_zero(exact, into)
        if math.isinf(rounded) or abs(exact) >= 2**128:
            return math.copysign(math.inf, exact)
        total = Fraction(rounded)
    return float(total)


def chain(left: list[float], right: list[float], onto: float, dtype: torch.dtype) -> float:
    """The dot of two rows, added to ``onto``: one fused multiply-add after the other."""
    total = onto
    for a, b in zip(left, right, strict=True):
        total = nearest(Fraction(a) * Fraction(b) + Fraction(total), dtype)
    return total


def convert(x: torch.Tensor, dtype: torch.dtype, rounding=nearest) -> torch.Tensor:
    """Every element of `x`, float or integer, converted exactly once."""
    out = [v if isinstance(v, float) and not math.isfinite(v) else rounding(Fraction(v), dtype) for v in x.tolist()]
    return torch.tensor(out, dtype=torch.float64).to(dtype)  # exact: each is a value of dtype


def to_integer(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Toward zero and saturating; NaN as an H200 gives it."""
    bounds = torch.iinfo(dtype)
    narrow = dtype == torch.int32 and x.dtype != torch.float64
    out = []
    for v in x.tolist():
        if math.isnan(v):
            out.append(0 if narrow else bounds.min)
        else:
            out.append(bounds.max if v >= bounds.max else bounds.min if v <= bounds.min else math.trunc(v))
    return torch.tensor(out, dtype=dtype)


def fused_multiply_add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """x * y + z rounded once."""
    out = []
    for a, b, c in zip(x.tolist(), y.tolist(), z.tolist(), strict=True):
        if math.isfinite(a) and math.isfinite(b) and math.isfinite(c):
            out.append(nearest(Fraction(a) * Fraction(b) + Fraction(c), x.dtype))
        else:
            out.append(a * b + c)
    return torch.tensor(out, dtype=torch.float64).to(x.dtype)


def halves_added(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The sum along `dim` as a tree of halves, each addition rounded to the dtype of `x`."""
    while x.shape[dim] > 1:
        first, second = x.chunk(2, dim)
        x = first + second
    return x.squeeze(dim)


def tf32_truncated(x: torch.Tensor) -> torch.Tensor:
    """float32 with the low 13 bits zero, in float64."""
    return torch.tensor([_tf32(v, math.floor) for v in x.tolist()], dtype=torch.float64)


def tf32_nearest_away(x: torch.Tensor) -> torch.Tensor:
    """float32 rounded to 11 bits, ties away from zero, in float64."""
    return torch.tensor([_tf32(v, lambda q: math.floor(q + Fraction(1, 2))) for v in x.tolist()], dtype=torch.float64)


def _tf32(value: float, whole) -> float:
    if value == 0 or not math.isfinite(value):
        return value
    size = Fraction(abs(value))
    unit = Fraction(2) ** (max(_floor_log2(size), -126) - 10)
    return math.copysign(float(whole(size / unit) * unit), value)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal values, NaN where NaN."""
    return left.dtype == right.dtype and bool(((left == right) | (left.isnan() & right.isnan())).all())
