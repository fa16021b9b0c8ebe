"""What every SDPA kernel starts and ends with: the rows of its program, loads and stores of tiles, row statistics."""

from __future__ import annotations

import triton
import triton.language as tl

from ..tiles import below, offsets, output_plane, plane, statistics


@triton.jit
def program_rows(count, H, BLOCK: tl.constexpr):
    """Return what this program computes: plane index = batch * H + head, batch, head, first row of its tile, rows.

    There is a program for each BLOCK of `count` rows (T queries or M keys) of each plane.
    """
    tiles = tl.cdiv(count, BLOCK)
    index, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    first = tile * BLOCK
    return index, index // H, index % H, first, first + tl.arange(0, BLOCK)


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
def query_statistics(m, l, batch, head, queries, existing, m_b, m_h, m_r, l_b, l_h, l_r):
    """Return m [queries] and 1 / l [queries] of plane [batch, head], as `statistics` does."""
    return statistics(
        plane(m, batch, head, m_b, m_h, False) + queries.to(tl.int64) * m_r,
        plane(l, batch, head, l_b, l_h, False) + queries.to(tl.int64) * l_r,
        existing,
    )


@triton.jit
def store_tile(tensor, index, count, width, rows, columns, tile, there, ALIGNED: tl.constexpr):
    """Store a tile [rows, columns], where `there`, in plane `index` of a contiguous tensor [B, H, count, width].

    It is rounded to the dtype of the tensor.
    """
    places = output_plane(tensor, index, count, width, ALIGNED) + offsets(rows, columns, width, 1, ALIGNED)
    tl.store(places, tile.to(tensor.dtype.element_ty), mask=there)
