"""What attention-like kernels do with a tile: address it, mask it, rebuild its probabilities."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


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
def plane(tensor, batch, head, batch_stride, head_stride, ALIGNED: tl.constexpr):
    """Return the pointer to element [batch, head, 0, 0]; 64-bit, since a tensor may span more than 2^31 elements.

    ALIGNED promises that every stride but the last, which is 1, is a multiple of 16 elements, and the pointer one of 16
    bytes, so that loads are vectors.
    """
    start = tensor + (batch.to(tl.int64) * batch_stride + head.to(tl.int64) * head_stride)
    if ALIGNED:
        start = tl.multiple_of(start, 16)
    return start


def rows_aligned(tensor: torch.Tensor) -> bool:
    """Return whether a tensor of rank 4 keeps the promise of ALIGNED: contiguous rows that start at multiples of 16."""
    return (
        tensor.data_ptr() % 16 == 0
        and tensor.stride(3) == 1
        and all(stride % 16 == 0 for stride in tensor.stride()[:3])
    )


@triton.jit
def below(plane, row, row_stride, ALIGNED: tl.constexpr):
    """Return the pointer to row `row` of a plane, whose start `plane` gave; `row_stride` is 64-bit.

    Triton makes one addition of the two pointers, which forgets what it knew of the first.
    """
    start = plane + row * row_stride
    if ALIGNED:
        start = tl.multiple_of(start, 16)
    return start


@triton.jit
def output_plane(tensor, index, rows, width, ALIGNED: tl.constexpr):
    """Return the pointer to plane `index` (batch * H + head) of a contiguous output [B, H, rows, width]."""
    start = tensor + index.to(tl.int64) * rows * width
    if ALIGNED:
        start = tl.multiple_of(start, 16)
    return start


@triton.jit
def offsets(rows, columns, row_stride, column_stride, ALIGNED: tl.constexpr):
    """Return the 64-bit offsets [rows, columns] of a tile within its plane."""
    lines = rows.to(tl.int64) * row_stride
    if ALIGNED:
        return tl.multiple_of(lines, 16)[:, None] + columns[None, :]
    else:
        return lines[:, None] + columns.to(tl.int64)[None, :] * column_stride


@triton.jit
def columns_within(columns, count, ALIGNED: tl.constexpr):
    """Return the mask [1, columns] of the features that exist; ALIGNED promises a count that is a multiple of 16."""
    if ALIGNED:
        return (columns < count // 16 * 16)[None, :]
    else:
        return (columns < count)[None, :]


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
    """Return what `load_step` and `load_operand` load the tiles of plane [batch, head] from, one after the other.

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
def load_operand(walked, row, there, PRECISION: tl.constexpr, ALIGNED: tl.constexpr):
    """Load the tile that starts at `row` of what `walk` returned, as operand of dots; 0 where `there` is false.

    With "parts" `walked` is of what `splitting.parts` made, and the operand is the three parts of a tile.
    """
    if PRECISION == "parts":
        start, tile, step = walked
        places = below(start, row, step, ALIGNED) + tile
        apart = step // 3
        if ALIGNED:
            apart = tl.multiple_of(apart, 16)
        first = tl.load(places, mask=there, other=0.0)
        second = tl.load(places + apart, mask=there, other=0.0)
        third = tl.load(places + 2 * apart, mask=there, other=0.0)
        return first, second, third
    else:
        return load_step(walked, row, there, ALIGNED)


@triton.jit
def load_own(
    tensor, batch, head, rows, columns, there, batch_stride, head_stride, row_stride, column_stride,
    PRECISION: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Load the tile [rows, columns] of plane [batch, head], which a program keeps, as operand of dots."""
    own = walk(tensor, batch, head, rows, columns, batch_stride, head_stride, row_stride, column_stride, ALIGNED)
    return load_operand(own, 0, there, PRECISION, ALIGNED)


@triton.jit
def store_tile(tensor, index, count, width, rows, columns, tile, there, ALIGNED: tl.constexpr):
    """Store a tile [rows, columns], where `there`, in plane `index` of a contiguous tensor [B, H, count, width].

    It is rounded to the dtype of the tensor.
    """
    places = output_plane(tensor, index, count, width, ALIGNED) + offsets(rows, columns, width, 1, ALIGNED)
    tl.store(places, tile.to(tensor.dtype.element_ty), mask=there)


@triton.jit
def visible_keys(rows, T, M, causal_offset):
    """Return for each query row [rows] how many keys it sees, <= 0 for none: keys 0 to that number, exclusive.

    `causal_offset` is M - T + 1 where causal (key j is seen by query i iff j <= i + M - T), else M. Rows past T see
    none.
    """
    return tl.where(rows < T, tl.minimum(rows + causal_offset, M), 0)


@triton.jit
def statistics(m_pointers, l_pointers, existing):
    """Return m [rows] and 1 / l [rows], both 0 where a row sees no key (m = -inf, l = 0) or does not exist."""
    row_max = tl.load(m_pointers, mask=existing, other=0.0)
    row_sum = tl.load(l_pointers, mask=existing, other=0.0)
    sees = row_sum != 0.0
    return tl.where(sees, row_max, 0.0), reciprocal(tl.where(sees, row_sum, 1.0), sees)


@triton.jit
def reciprocal(denominator, where_true):
    """Return 1 / denominator, rounded once, where `where_true`, else 0; plain `/` is 2 ulp off in fp32 on a GPU."""
    if denominator.dtype == tl.float32:
        return tl.where(where_true, tl.div_rn(tl.full(denominator.shape, 1.0, tl.float32), denominator), 0.0)
    else:
        return tl.where(where_true, 1.0 / denominator, 0.0)


@triton.jit
def bfloat16_parts(values):
    """Return three bfloat16 numbers whose sum float32 `values` are, each the nearest to what those before it leave.

    The nearest is found by two differences with 65537 times the value (Veltkamp; compiled without fused operations):
    of conversions that are used as float32 again, a GPU makes 16 a cycle. |values| is at most 2^111.
    """
    scaled = values * 65537.0
    first = scaled - (scaled - values)
    rest = values - first
    scaled = rest * 65537.0
    second = scaled - (scaled - rest)
    return first.to(tl.bfloat16), second.to(tl.bfloat16), (rest - second).to(tl.bfloat16)


@triton.jit
def operand(values, walked, PRECISION: tl.constexpr):
    """Return `values` as operand of a dot with tiles of `walked`: rounded to their dtype, or with "parts" split."""
    if PRECISION == "parts":
        return bfloat16_parts(values)
    else:
        start, _, _ = walked
        return values.to(start.dtype.element_ty)


@triton.jit
def values_of(tile, PRECISION: tl.constexpr, ACCUMULATE: tl.constexpr):
    """Return the values of an operand that was loaded, in ACCUMULATE: of parts their sum, which no addition rounds."""
    if PRECISION == "parts":
        first, second, third = tile
        return (first.to(ACCUMULATE) + second.to(ACCUMULATE)) + third.to(ACCUMULATE)
    else:
        return tile.to(ACCUMULATE)


@triton.jit
def turned(tile, PRECISION: tl.constexpr):
    """Return an operand transposed."""
    if PRECISION == "parts":
        first, second, third = tile
        return tl.trans(first), tl.trans(second), tl.trans(third)
    else:
        return tl.trans(tile)


@triton.jit
def dot(left, right, PRECISION: tl.constexpr, ACCUMULATE: tl.constexpr, acc=None, TURNED: tl.constexpr = False):
    """Return left @ right of two operands, added to `acc` if there is one, in ACCUMULATE.

    PRECISION is of float32: "ieee", "tf32", or "bf16x6", the six largest products of bfloat16 parts, the smallest first
    into a sum of their own; "parts" is the same of operands that are split already. With TURNED the result has the bits
    of right^T @ left^T, transposed, in every PRECISION.
    """
    if PRECISION == "bf16x6":
        return dot(bfloat16_parts(left), bfloat16_parts(right), "parts", ACCUMULATE, acc, TURNED)
    elif PRECISION == "parts":
        a, b, c = left
        d, e, f = right
        total = tl.dot(b, e)
        if TURNED:
            total = tl.dot(a, f, acc=total)
            total = tl.dot(c, d, acc=total)
            total = tl.dot(a, e, acc=total)
            total = tl.dot(b, d, acc=total)
        else:
            total = tl.dot(c, d, acc=total)
            total = tl.dot(a, f, acc=total)
            total = tl.dot(b, d, acc=total)
            total = tl.dot(a, e, acc=total)
        total = tl.dot(a, d, acc=total)
        return total if acc is None else acc + total
    elif acc is None:
        return tl.dot(left, right, input_precision=PRECISION, out_dtype=ACCUMULATE)
    else:
        return tl.dot(left, right, acc=acc, input_precision=PRECISION, out_dtype=ACCUMULATE)


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
def padded_places(index, padded, rows):
    """Return the offsets [rows] of rows of plane `index` in a tensor [B, H, padded] of `blocks.padded_rows`."""
    return index.to(tl.int64) * padded + rows


@triton.jit
def load_factors(shift, inverse, index, padded, rows):
    """Load m and 1 / l, or what stands for it, [rows] of plane `index`, as `row_factors` made them.

    Both are [B, H, padded], zeros past the last row: a mask of these loads costs a tenth of a pass over keys.
    """
    places = padded_places(index, padded, rows)
    return tl.load(shift + places), tl.load(inverse + places)


@triton.jit
def whole_tiles(seen, existing, M, BLOCK_KEY: tl.constexpr):
    """Return the end of the tiles of keys that every existing row [rows] sees whole, a multiple of BLOCK_KEY."""
    return tl.maximum(tl.min(tl.where(existing, seen, M), axis=0), 0) // BLOCK_KEY * BLOCK_KEY


@triton.jit
def first_query(first_key, causal_offset, BLOCK_QUERY: tl.constexpr):
    """Return the start of the first tile of queries with a row that sees `first_key` or a later key.

    Row i sees it iff first_key < i + causal_offset.
    """
    return tl.maximum(first_key - causal_offset + 1, 0) // BLOCK_QUERY * BLOCK_QUERY


@triton.jit
def whole_queries(keys, M, causal_offset, BLOCK_QUERY: tl.constexpr):
    """Return where the rows begin that see some of a tile's keys [keys], and those that see all, in tiles BLOCK_QUERY.

    Row i sees key j iff j < i + causal_offset. Keys past M count for none: what is computed for them is not stored.
    """
    first = first_query(tl.min(keys, axis=0), causal_offset, BLOCK_QUERY)
    last = tl.minimum(tl.max(keys, axis=0), M - 1)
    return first, tl.cdiv(tl.maximum(last - causal_offset + 1, 0), BLOCK_QUERY) * BLOCK_QUERY
