"""What SDPA kernels share: columns of q, k and v, rebuilt probabilities, tangents of scores, weighted means."""

from __future__ import annotations

import triton
import triton.language as tl

from ..tiles import columns_within, dot, in_units


@triton.jit
def feature_columns(D, DV, WIDTH: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the columns [WIDTH] of a tile and two masks [1, WIDTH]: those of q and k, and those of v."""
    columns = tl.arange(0, WIDTH)
    return columns, columns_within(columns, D, ALIGNED), columns_within(columns, DV, ALIGNED)


@triton.jit
def rebuilt(
    rows, columns, shift, inverse, visible, scale, rate,
    PRECISION: tl.constexpr, ACCUMULATE: tl.constexpr, EXACT: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Return P of a tile of q [rows] and one of k [columns], or P^T of k and q, in ACCUMULATE.

    It is exactly 0 where PARTIAL and a query does not see the key. exp2 of the difference times log2(e): folding
    log2(e) into S would round |S| where this rounds |S - m|.
    """
    products = dot(rows, tl.trans(columns), PRECISION, ACCUMULATE)
    p = tl.exp2((in_units(products, scale, EXACT) - shift) * rate) * inverse
    if PARTIAL:
        p = tl.where(visible, p, 0.0)
    return p


@triton.jit
def score_tangent(
    q_tile, k_tile, tq_tile, tk_tile, scale, PRECISION: tl.constexpr, ACCUMULATE: tl.constexpr
):  # fmt: skip
    """Return S' = scale (q' k^T + q k'^T) [queries, keys], in ACCUMULATE; transposed where q and k are exchanged."""
    tangent = dot(tq_tile, tl.trans(k_tile), PRECISION, ACCUMULATE)
    return dot(q_tile, tl.trans(tk_tile), PRECISION, ACCUMULATE, acc=tangent) * scale


@triton.jit
def mean_of(total, weight):
    """Return the mean [rows] that a weighted sum gives; 0 where nothing was weighed."""
    return tl.where(weight > 0.0, total / tl.where(weight > 0.0, weight, 1.0), 0.0)
