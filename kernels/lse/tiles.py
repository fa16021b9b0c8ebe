"""What LSE kernels share: which tile a program has, loads and stores of tiles, capped scores, segments, sinks."""

from __future__ import annotations

import triton
import triton.language as tl

from ..tiles import below, offsets, output_plane, plane

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
SMALLEST_ID: tl.constexpr = tl.constexpr(-(2**63))
LARGEST_ID: tl.constexpr = tl.constexpr(2**63 - 1)


@triton.jit
def program_rows(count, heads, BLOCK: tl.constexpr):
    """Return what this program computes: plane (batch * heads + head), batch, head, number of the tile, its rows.

    There is a program for each tile of BLOCK of `count` rows (T queries or M keys) of each plane.
    """
    tiles = tl.cdiv(count, BLOCK)
    index, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    batch, head = index // heads, index % heads
    return index, batch, head, tile, tile * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def load_tile(
    tensor, batch, head, rows, columns, there, batch_stride, head_stride, row_stride, column_stride,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """Load the tile [rows, columns] of plane [batch, head] of a tensor; 0 where `there` is false."""
    start = plane(tensor, batch, head, batch_stride, head_stride, ALIGNED)
    return tl.load(start + offsets(rows, columns, row_stride, column_stride, ALIGNED), mask=there, other=0.0)


@triton.jit
def walk(
    tensor, batch, head, rows, columns, batch_stride, head_stride, row_stride, column_stride, ALIGNED: tl.constexpr
):  # fmt: skip
    """Return what `load_step` loads the tiles of plane [batch, head] from, one after the other down the rows.

    That is the pointer to the plane, the offsets [rows, columns] of its first tile, and the row stride in 64 bits.
    """
    start = plane(tensor, batch, head, batch_stride, head_stride, ALIGNED)
    return start, offsets(rows, columns, row_stride, column_stride, ALIGNED), row_stride.to(tl.int64)


@triton.jit
def load_step(walked, row, there, ALIGNED: tl.constexpr):
    """Load the tile that starts at `row` of what `walk` returned; 0 where `there` is false."""
    start, tile, step = walked
    return tl.load(below(start, row, step, ALIGNED) + tile, mask=there, other=0.0)


@triton.jit
def store_tile(tensor, index, count, width, rows, columns, tile, there, ALIGNED: tl.constexpr):
    """Store a tile [rows, columns], where `there`, in plane `index` of a contiguous tensor [B, H, count, width].

    It is rounded to the dtype of the tensor.
    """
    places = output_plane(tensor, index, count, width, ALIGNED) + offsets(rows, columns, width, 1, ALIGNED)
    tl.store(places, tile.to(tensor.dtype.element_ty), mask=there)


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
def scores_with_tangents(q_tile, k_tile, tq_tile, tk_tile, scale, softcap, PLAIN: tl.constexpr):
    """Return capped scores [queries, keys], the slope of the cap, and the tangents of both."""
    scores, slope = capped(tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale, softcap, PLAIN)
    ts = tl.dot(tq_tile, tl.trans(k_tile), input_precision="ieee")
    ts = tl.dot(q_tile, tl.trans(tk_tile), acc=ts, input_precision="ieee") * scale
    moved, bend = capped_tangent(scores, slope, ts, softcap, PLAIN)
    return scores, slope, moved, bend


@triton.jit
def overlap(query_ids, query_there, key_ids, key_there):
    """Return whether some segment may hold queries and keys of both tiles: whether the ranges of their ids meet."""
    query_low = tl.min(tl.where(query_there, query_ids, LARGEST_ID), axis=0)
    query_high = tl.max(tl.where(query_there, query_ids, SMALLEST_ID), axis=0)
    key_low = tl.min(tl.where(key_there, key_ids, LARGEST_ID), axis=0)
    key_high = tl.max(tl.where(key_there, key_ids, SMALLEST_ID), axis=0)
    return (query_low <= key_high) & (key_low <= query_high)


@triton.jit
def same_segment(allowed, query_ids, query_there, key_ids, key_there):
    """Return the mask `allowed` [queries, keys] within segments, and whether any query and key may share one."""
    within = allowed & (query_ids[:, None] == key_ids[None, :])
    return within, overlap(query_ids, query_there, key_ids, key_there)


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
