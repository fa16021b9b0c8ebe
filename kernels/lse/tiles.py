"""What LSE kernels share: capped scores and their tangents, what a score weighs, segments, sinks."""

from __future__ import annotations

import triton
import triton.language as tl

from .. import launching
from ..tiles import (
    dot,
    in_units,
    turned,
)

LOG2E: tl.constexpr = tl.constexpr(launching.LOG2E)
SMALLEST_ID: tl.constexpr = tl.constexpr(-(2**63))
LARGEST_ID: tl.constexpr = tl.constexpr(2**63 - 1)


@triton.jit
def capped(scores, softcap, PLAIN: tl.constexpr):
    """Return c tanh(S / c) and its slope 1 - tanh^2(S / c), both shaped as `scores`; S and 1 where softcap is 0.

    PLAIN promises that it is.

    tanh is an odd series below 0.55, where 1 - exp(-2 |x|) would cancel, and within 2 ulp at every size. The slope is
    4 e / (1 + e)^2 with e = exp(-2 |x|), which does not cancel where tanh is near 1.
    """
    slope = tl.full(scores.shape, 1.0, scores.dtype)
    if not PLAIN:  # noqa: SIM102 (a constant, and a number at run time)
        if softcap > 0:
            x = scores / softcap
            e = tl.exp(-2.0 * tl.abs(x))
            z = x * x
            # Taylor coefficients of tanh(x) / x in x^2; what is left out is 5e-9 of it at 0.55
            series = -0.0014558343870513183 + z * 0.0005900274409455860
            series = 0.0035921280365724810 + z * series
            series = -0.0088632355299021966 + z * series
            series = 0.0218694885361552028 + z * series
            series = -0.0539682539682539683 + z * series
            series = 0.1333333333333333333 + z * series
            series = -0.3333333333333333333 + z * series
            near = x + x * (z * series)
            far = (1.0 - e) / (1.0 + e)
            tanh = tl.where(tl.abs(x) < 0.55, near, tl.where(x < 0, -far, far))
            scores = softcap * tanh
            slope = 4.0 * e / ((1.0 + e) * (1.0 + e))
    return scores, slope


@triton.jit
def capped_tangent(scores, slope, tangent, softcap, PLAIN: tl.constexpr):
    """Return the tangents of c tanh(S / c) and of its slope, of `capped`'s results and the tangent of S."""
    moved = slope * tangent
    bend = tl.zeros(moved.shape, moved.dtype)
    if not PLAIN:  # noqa: SIM102 (a constant, and a number at run time)
        if softcap > 0:
            bend = -2.0 * (scores / softcap) / softcap * moved
    return moved, bend


@triton.jit
def capped_scores(
    rows, columns, scale, softcap,
    PRECISION: tl.constexpr, EXACT: tl.constexpr, PLAIN: tl.constexpr, TURNED: tl.constexpr = False,
):  # fmt: skip
    """Return capped scores of a tile of q [rows] and one of k [columns], and the slope of the cap.

    With TURNED both are transposed, of k and q. Scores have the bits with which forward found m, so that exp(S - m) is
    1 at the largest, whatever roundings S has.
    """
    products = dot(rows, turned(columns, PRECISION), PRECISION, tl.float32, TURNED=TURNED)
    return capped(in_units(products, scale, EXACT), softcap, PLAIN)


@triton.jit
def moved_scores(
    rows, columns, trows, tcolumns, scores, slope, scale, softcap,
    PRECISION: tl.constexpr, PLAIN: tl.constexpr, TURNED: tl.constexpr = False,
):  # fmt: skip
    """Return the tangents of what `capped_scores` gives of these tiles, along their tangents."""
    tangent = dot(trows, turned(columns, PRECISION), PRECISION, tl.float32, TURNED=TURNED)
    tangent = dot(rows, turned(tcolumns, PRECISION), PRECISION, tl.float32, acc=tangent, TURNED=TURNED) * scale
    return capped_tangent(scores, slope, tangent, softcap, PLAIN)


@triton.jit
def weighed(scores, shift, weight, visible, rate, PARTIAL: tl.constexpr):
    """Return exp(S - m) times the weight of each query, exactly 0 where PARTIAL and a query does not see the key.

    It is P with weights 1 / l, and P g with weights g / l. exp2 of the difference times log2(e): folding log2(e) into S
    would round |S| where this rounds |S - m|.
    """
    p = tl.exp2((scores - shift) * rate) * weight
    if PARTIAL:
        p = tl.where(visible, p, 0.0)
    return p


@triton.jit
def overlap(row_ids, row_there, column_ids, column_there):
    """Return whether some segment may hold rows and columns of a tile of scores: whether the ranges of ids meet."""
    row_low = tl.min(tl.where(row_there, row_ids, LARGEST_ID), axis=0)
    row_high = tl.max(tl.where(row_there, row_ids, SMALLEST_ID), axis=0)
    column_low = tl.min(tl.where(column_there, column_ids, LARGEST_ID), axis=0)
    column_high = tl.max(tl.where(column_there, column_ids, SMALLEST_ID), axis=0)
    return (row_low <= column_high) & (column_low <= row_high)


@triton.jit
def same_segment(allowed, row_ids, row_there, column_ids, column_there):
    """Return the mask `allowed` [rows, columns] within segments, and whether any row and column may share one."""
    within = allowed & (row_ids[:, None] == column_ids[None, :])
    return within, overlap(row_ids, row_there, column_ids, column_there)


@triton.jit
def segment_ids(ids, batch, positions, count, batch_stride, stride, has_segments):
    """Return the segment ids [positions] of one side as 64-bit integers, 0 past its end.

    Without segments all are 0: one segment, and nothing is read.
    """
    start = ids + batch.to(tl.int64) * batch_stride
    there = (positions < count) & (has_segments != 0)
    return tl.load(start + positions.to(tl.int64) * stride, mask=there, other=0).to(tl.int64)


@triton.jit
def sink_of(sinks, head, stride, has_sinks):
    """Return the sink of a head, or what belongs to it, in float32: -inf without sinks, and nothing is read."""
    return tl.load(sinks + head.to(tl.int64) * stride, mask=has_sinks != 0, other=float("-inf")).to(tl.float32)
