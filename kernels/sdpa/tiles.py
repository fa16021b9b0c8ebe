"""What SDPA kernels share: which tile a program has, loads and stores of tiles, rebuilt probabilities."""

from __future__ import annotations

import triton
import triton.language as tl

from ..tiles import below, columns_within, first_query, offsets, output_plane, plane, reciprocal, statistics


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
def in_units(products, scale, EXACT: tl.constexpr):
    """Return scores from dots q k: S = scale q k, or with EXACT, which promises a power of two, the dots themselves.

    A power of two changes no rounding: there S is one multiplication less a score, in other units, and `rate` has it.
    """
    if EXACT:
        return products
    else:
        return products * scale


@triton.jit
def row_factors(m_pointers, l_pointers, existing, scale, EXACT: tl.constexpr):
    """Return m [rows], in the units of scores, and 1 / l [rows]: P = exp2((score - m) rate) / l.

    Both are 0 where a row sees no key (m = -inf, l = 0) or does not exist.
    """
    row_max, inverse_sum = statistics(m_pointers, l_pointers, existing)
    if EXACT:  # a power of two has an exact reciprocal, which plain `/` may miss on a GPU
        one = tl.full(row_max.shape, 1.0, row_max.dtype)
        row_max = row_max * reciprocal(one * scale, one > 0)
    return row_max, inverse_sum


@triton.jit
def load_factors(shift, inverse, index, count, rows, existing):
    """Load what `moments` stored for plane `index`: m and 1 / l [rows] of `row_factors`, 0 past `count` rows."""
    places = index.to(tl.int64) * count + rows
    return tl.load(shift + places, mask=existing, other=0.0), tl.load(inverse + places, mask=existing, other=0.0)


@triton.jit
def rebuilt(
    rows, columns, shift, inverse, visible, scale, rate,
    PRECISION: tl.constexpr, ACCUMULATE: tl.constexpr, EXACT: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Return P of a tile of q [rows] and one of k [columns], or P^T of k and q, in ACCUMULATE.

    It is exactly 0 where PARTIAL and a query does not see the key. exp2 of the difference times log2(e): folding
    log2(e) into S would round |S| where this rounds |S - m|.
    """
    products = tl.dot(rows, tl.trans(columns), input_precision=PRECISION, out_dtype=ACCUMULATE)
    p = tl.exp2((in_units(products, scale, EXACT) - shift) * rate) * inverse
    if PARTIAL:
        p = tl.where(visible, p, 0.0)
    return p


@triton.jit
def whole_tiles(seen, existing, M, BLOCK_KEY: tl.constexpr):
    """Return the end of the tiles of keys that every existing row [rows] sees whole, a multiple of BLOCK_KEY."""
    return tl.maximum(tl.min(tl.where(existing, seen, M), axis=0), 0) // BLOCK_KEY * BLOCK_KEY


@triton.jit
def whole_queries(keys, M, causal_offset, BLOCK_QUERY: tl.constexpr):
    """Return where the rows begin that see some of a tile's keys [keys], and those that see all, in tiles BLOCK_QUERY.

    Row i sees key j iff j < i + causal_offset. Keys past M count for none: what is computed for them is not stored.
    """
    first = first_query(tl.min(keys, axis=0), causal_offset, BLOCK_QUERY)
    last = tl.minimum(tl.max(keys, axis=0), M - 1)
    return first, tl.cdiv(tl.maximum(last - causal_offset + 1, 0), BLOCK_QUERY) * BLOCK_QUERY


@triton.jit
def score_tangent(
    q_tile, k_tile, tq_tile, tk_tile, scale, PRECISION: tl.constexpr, ACCUMULATE: tl.constexpr
):  # fmt: skip
    """Return S' = scale (q' k^T + q k'^T) [queries, keys], in ACCUMULATE; transposed where q and k are exchanged."""
    tangent = tl.dot(tq_tile, tl.trans(k_tile), input_precision=PRECISION, out_dtype=ACCUMULATE)
    return tl.dot(q_tile, tl.trans(tk_tile), acc=tangent, input_precision=PRECISION, out_dtype=ACCUMULATE) * scale
