"""Accumulation: in which order a dot adds its products, and how each sum is rounded; to the bit, on every processor.

No BLAS, no vector width, no number of threads and no other element of the tile has a say: each element of the result is
a function of its row, its column and its accumulator alone, and one of (row, column) as of (column, row). Compiled by
numba if it is installed (extra ``fast``), with numpy otherwise: the same bits.

- `chained`: FFMA and DFMA. One fused multiply-add after the other along k, from the accumulator on.
- `in_blocks`: tensor cores. Products of a block of k and the accumulator are cut to multiples of one power of two and
  added up exactly, and the sum is cut to the accumulator's format. docs/background/interpreter.md has the measurements.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradoracle.host.interpreter.rounding import fma_of_parts, fused_multiply_add, split, splits
from gradoracle.host.interpreter.values import Array
from gradoracle.model import machine_code
from gradoracle.model.machine_code import HAS_NUMBA

_EXPONENT = np.int64(0x7FF)
_BIAS = np.int64(1023)
_SHIFT = np.int64(52)
_NEVER = np.int16(-16000)
"""The exponent of an operand that is 0: no product with it is the largest of its block."""


@dataclass(frozen=True)
class TensorCore:
    """How the tensor cores of sm_90 add up products of one kind of operands.

    Attributes:
        block: products that are added at a time.
        least: the smallest exponent of a left and a right operand; subnormal operands have it too.
        fraction: terms are cut to multiples of 2^-fraction times the largest power of two among the terms of a block.
        kept: bits of a sum's fraction that are kept.
        is_nearest: True if a sum is rounded to nearest, ties to even; it is cut otherwise.
        lowest: the exponent of the smallest normal sum.
        overflow: sums of this size and larger are infinite.
    """

    block: int
    least: tuple[int, int] = (-126, -126)
    fraction: int = 25
    kept: int = 23
    is_nearest: bool = False
    lowest: int = -126
    overflow: float = 2.0**128


def chained(left: Array, right: Array, onto: Array) -> Array:
    """left [.. M K] @ right [.. K N] + onto [.. M N], all float32 or all float64: fma after fma along k."""
    out = np.array(np.broadcast_to(onto, _shape(left, right, onto)), order="C")
    if not HAS_NUMBA:
        return _chain_by_numpy(left, right, out)
    a, rows = _flat(left, right, onto)
    b, columns = _flat(right, left, onto)
    _compiled_chain()(a, rows, b, columns, out.reshape(-1, *out.shape[-2:]))
    return out


def in_blocks(left: Array, right: Array, onto: Array, core: TensorCore) -> Array:
    """left [.. M K] @ right [.. K N] + onto [.. M N] on tensor cores; operands and accumulator are of float32's range.

    Infinite and NaN terms make a sum what IEEE arithmetic makes it.
    """
    a, b = left.astype(np.float64), right.astype(np.float64)
    c = np.array(np.broadcast_to(onto, _shape(left, right, onto)), np.float64, order="C")
    special = None
    if not (np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(c).all()):
        special = _plain_sum(a, b, c)
        a, b, c = (np.where(np.isfinite(each), each, 0.0) for each in (a, b, c))
    if HAS_NUMBA:
        flat, rows = _flat(a, b, c)
        other, columns = _flat(b, a, c)
        exponents = _compiled_exponents()
        _compiled_blocks()(
            flat, exponents(flat, core.least[0]), rows, other, exponents(other, core.least[1]), columns,
            c.reshape(-1, *c.shape[-2:]), core.block, core.fraction, core.kept, core.is_nearest, core.lowest,
            core.overflow,
        )  # fmt: skip
        found = c
    else:
        found = _blocks(a, b, c, core)
    if special is not None:
        found = np.where(np.isfinite(special), found, special)
    return found.astype(onto.dtype)


def _chain_by_numpy(left: Array, right: Array, total: Array) -> Array:
    depth = left.shape[-1]
    columns = [(left[..., :, k, None], right[..., None, k, :]) for k in range(depth)]
    sizes = np.abs(left).max(initial=0.0), np.abs(right).max(initial=0.0)
    most = np.abs(total).max(initial=0.0) + depth * float(sizes[0]) * float(sizes[1])
    if total.dtype == np.float64 and splits(left, right, np.array(most)):
        (a, b), (c, d) = split(left), split(right)
        for k, (x, y) in enumerate(columns):
            x_parts = a[..., :, k, None], b[..., :, k, None]
            total = fma_of_parts(x, x_parts, y, (c[..., None, k, :], d[..., None, k, :]), total)
        return total
    for x, y in columns:
        total = fused_multiply_add(x, y, total)
    return total


def _shape(left: Array, right: Array, onto: Array) -> tuple[int, ...]:
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2], onto.shape[:-2])
    return (*batch, left.shape[-2], right.shape[-1])


def _flat(operand: Array, *others: Array) -> tuple[Array, npt.NDArray[np.int64]]:
    """An operand as [n, rows, columns], contiguous, and which of the n each member of the whole batch takes."""
    own = operand.shape[:-2]
    batch = np.broadcast_shapes(own, *(other.shape[:-2] for other in others))
    members = np.broadcast_to(np.arange(math.prod(own)).reshape(own), batch).reshape(-1)
    return np.ascontiguousarray(operand.reshape(-1, *operand.shape[-2:])), members


def _exponents(values: npt.NDArray[np.float64], least: int) -> npt.NDArray[np.int16]:
    """Of finite values; ``least`` for smaller ones, and `_NEVER` for 0."""
    found = ((values.view(np.int64) >> _SHIFT) & _EXPONENT) - _BIAS
    return np.where(values == 0, _NEVER, np.maximum(found, least)).astype(np.int16)


def _power_of_two(exponent: Array) -> Array:
    return ((exponent.astype(np.int64) + _BIAS) << _SHIFT).view(np.float64)


def _plain_sum(a: Array, b: Array, c: Array) -> Array:
    """The sum in float64, for what is infinite or NaN in it: no finite product of float32's range overflows there."""
    total = c
    with np.errstate(invalid="ignore"):
        for k in range(a.shape[-1]):
            total = total + a[..., :, k, None] * b[..., None, k, :]
    return total


def _blocks(a: Array, b: Array, c: Array, core: TensorCore) -> Array:
    """``in_blocks`` of finite float64 values, with numpy."""
    left, right = (_exponents(np.ascontiguousarray(v), least) for v, least in zip((a, b), core.least, strict=True))
    for start in range(0, a.shape[-1], core.block):
        places = range(start, min(start + core.block, a.shape[-1]))
        largest = np.maximum(_exponents(c, core.lowest), np.int16(core.lowest))
        for k in places:
            largest = np.maximum(largest, left[..., :, k, None] + right[..., None, k, :])
        unit = _power_of_two(largest - core.fraction)
        scale = _power_of_two(core.fraction - largest)
        total = np.trunc(c * scale)
        for k in places:
            total += np.trunc(a[..., :, k, None] * b[..., None, k, :] * scale)
        c = _rounded(total * unit, core)
    return c


def _rounded(sums: Array, core: TensorCore) -> Array:
    """Sums in the accumulator's format, held in float64."""
    last = np.maximum(_exponents(sums, core.lowest), np.int16(core.lowest)) - core.kept
    scaled = sums * _power_of_two(-last)
    found = (np.rint(scaled) if core.is_nearest else np.trunc(scaled)) * _power_of_two(last)
    return np.where(np.abs(found) >= core.overflow, np.copysign(np.inf, found), found)


@functools.cache
def _compiled_chain() -> Any:
    machine_code.compile_to_fma(fused_multiply_add)
    return machine_code.jitted(_chain)


@functools.cache
def _compiled_blocks() -> Any:
    return machine_code.jitted(_sum_blocks)


@functools.cache
def _compiled_exponents() -> Any:
    return machine_code.jitted(_exponents_of)


def _exponents_of(values, least):  # type: ignore[no-untyped-def]
    """``_exponents`` of a contiguous array."""
    found = np.empty(values.shape, np.int16)
    bits, out = values.reshape(-1).view(np.int64), found.reshape(-1)
    for i in range(out.size):
        exponent = max(((bits[i] >> 52) & 0x7FF) - 1023, least)
        out[i] = _NEVER if bits[i] << 1 == 0 else exponent
    return found


def _chain(a, rows, b, columns, out):  # type: ignore[no-untyped-def]
    """``chained`` onto ``out`` [P, M, N]; member p of the batch takes a[rows[p]] and b[columns[p]]."""
    depth, width = a.shape[2], b.shape[2]
    whole = depth - depth % 4
    for p in range(out.shape[0]):
        left, right, total = a[rows[p]], b[columns[p]], out[p]
        for m in range(a.shape[1]):
            for k in range(0, whole, 4):
                w, x, y, z = left[m, k], left[m, k + 1], left[m, k + 2], left[m, k + 3]
                for n in range(width):
                    s = fused_multiply_add(w, right[k, n], total[m, n])
                    s = fused_multiply_add(x, right[k + 1, n], s)
                    s = fused_multiply_add(y, right[k + 2, n], s)
                    total[m, n] = fused_multiply_add(z, right[k + 3, n], s)
            for k in range(whole, depth):
                w = left[m, k]
                for n in range(width):
                    total[m, n] = fused_multiply_add(w, right[k, n], total[m, n])


def _sum_blocks(a, high, rows, b, wide, columns, out, block, fraction, kept, is_nearest, lowest, overflow):  # type: ignore[no-untyped-def]
    """``in_blocks`` onto ``out`` [P, M, N], with the exponents of ``a`` in ``high`` and those of ``b`` in ``wide``."""
    depth, width = a.shape[2], b.shape[2]
    total, unit, scale = np.empty(width), np.empty(width), np.empty(width)
    total_bits, unit_bits, scale_bits = total.view(np.int64), unit.view(np.int64), scale.view(np.int64)
    largest = np.empty(width, np.int16)
    floor = np.int16(lowest)
    spare = np.int64(52 - kept)
    cut = np.int64(-1) << spare
    smallest, least_unit, least_scale = 2.0**lowest, 2.0 ** (lowest - kept), 2.0 ** (kept - lowest)
    for p in range(out.shape[0]):
        left, right = a[rows[p]], b[columns[p]]
        left_high, right_high = high[rows[p]], wide[columns[p]]
        for m in range(a.shape[1]):
            for n in range(width):
                total[n] = out[p, m, n]
            for start in range(0, depth, block):
                end = min(start + block, depth)
                for n in range(width):
                    largest[n] = max(np.int16(((total_bits[n] >> 52) & 0x7FF) - 1023), floor)
                for k in range(start, end):
                    above = left_high[m, k]
                    if above > -8000:
                        for n in range(width):
                            largest[n] = max(np.int16(above + right_high[k, n]), largest[n])
                for n in range(width):
                    exponent = np.int64(largest[n])
                    scale_bits[n] = (1023 + fraction - exponent) << 52
                    unit_bits[n] = (1023 - fraction + exponent) << 52
                    total[n] = np.trunc(total[n] * scale[n])
                for k in range(start, end):
                    x = left[m, k]
                    if x != 0.0:
                        for n in range(width):
                            total[n] += np.trunc(x * right[k, n] * scale[n])
                if is_nearest:
                    for n in range(width):
                        total[n] *= unit[n]
                        exponent = max(((total_bits[n] >> 52) & 0x7FF) - 1023, np.int64(lowest)) - kept
                        scale_bits[n] = (1023 - exponent) << 52
                        unit_bits[n] = (1023 + exponent) << 52
                        total[n] = np.rint(total[n] * scale[n]) * unit[n]
                else:
                    for n in range(width):
                        exact = total[n] * unit[n]
                        total[n] = exact
                        total_bits[n] &= cut
                        if abs(exact) < smallest:
                            total[n] = np.trunc(exact * least_scale) * least_unit
                for n in range(width):
                    if abs(total[n]) >= overflow:
                        total[n] = np.copysign(np.inf, total[n])
            for n in range(width):
                out[p, m, n] = total[n]
