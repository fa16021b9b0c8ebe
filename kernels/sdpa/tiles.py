"""What SDPA kernels share: which tile a program has, loads and stores of tiles, rebuilt probabilities."""

from __future__ import annotations

import triton
import triton.language as tl

from ..tiles import below, columns_within, offsets, output_plane, plane, probabilities, statistics


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
def feature_columns(D, DV, WIDTH: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the columns [WIDTH] of a tile and two masks [1, WIDTH]: those of q and k, and those of v."""
    columns = tl.arange(0, WIDTH)
    return columns, columns_within(columns, D, ALIGNED), columns_within(columns, DV, ALIGNED)


@triton.jit
def query_statistics(m, l, batch, head, queries, existing, m_b, m_h, m_r, l_b, l_h, l_r):
    """Return m [queries] and 1 / l [queries] of plane [batch, head], as `statistics` does."""
    return statistics(
        plane(m, batch, head, m_b, m_h, False) + queries.to(tl.int64) * m_r,
        plane(l, batch, head, l_b, l_h, False) + queries.to(tl.int64) * l_r,
        existing,
    )


@triton.jit
def rebuilt(
    q_tile, k_tile, visible, row_max, inverse_sum, scale, PRECISION: tl.constexpr, ACCUMULATE: tl.constexpr
):  # fmt: skip
    """Return P [queries, keys] from what `statistics` returned, in ACCUMULATE."""
    scores = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION, out_dtype=ACCUMULATE) * scale
    return probabilities(scores, visible, row_max, inverse_sum)


@triton.jit
def score_tangent(
    q_tile, k_tile, tq_tile, tk_tile, scale, PRECISION: tl.constexpr, ACCUMULATE: tl.constexpr
):  # fmt: skip
    """Return S' = scale (q' k^T + q k'^T) [queries, keys], in ACCUMULATE."""
    tangent = tl.dot(tq_tile, tl.trans(k_tile), input_precision=PRECISION, out_dtype=ACCUMULATE)
    return tl.dot(q_tile, tl.trans(tk_tile), acc=tangent, input_precision=PRECISION, out_dtype=ACCUMULATE) * scale
