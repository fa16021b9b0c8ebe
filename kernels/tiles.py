"""What attention-like kernels do with a tile: address it, mask it, rebuild its probabilities."""

from __future__ import annotations

import triton
import triton.language as tl


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
def probabilities(scores, visible, row_max, inverse_sum):
    """Return P = exp(S - m) / l [queries, keys], exactly 0 where a query does not see the key.

    The natural exponential of the difference: folding log2(e) into S would round |S| where this rounds |S - m|.
    """
    return tl.exp(tl.where(visible, scores, float("-inf")) - row_max[:, None]) * inverse_sum[:, None]


@triton.jit
def first_query(first_key, causal_offset, BLOCK_QUERY: tl.constexpr):
    """Return the start of the first tile of queries with a row that sees `first_key` or a later key.

    Row i sees it iff first_key < i + causal_offset.
    """
    return tl.maximum(first_key - causal_offset + 1, 0) // BLOCK_QUERY * BLOCK_QUERY
