"""What SDPA kernels share: columns of q, k and v, rebuilt probabilities, tangents of scores, weighted means."""

from __future__ import annotations

import triton
import triton.language as tl

from ..tiles import (
    columns_within,
    dot,
    in_units,
    turned,
)


@triton.jit
def feature_columns(D, DV, WIDTH: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the columns [WIDTH] of a tile and two masks [1, WIDTH]: those of q and k, and those of v."""
    columns = tl.arange(0, WIDTH)
    return columns, columns_within(columns, D, ALIGNED), columns_within(columns, DV, ALIGNED)


@triton.jit
def online(products, visible, largest, scale, rate, EXACT: tl.constexpr, PARTIAL: tl.constexpr):
    """Return exp(S - running maximum) of a tile's dots q k, what sums of tiles before it shrink by, and the maximum.

    `largest` [queries] is the maximum of what was seen before, -inf of nothing. Where PARTIAL, what is not `visible` is
    exactly 0.
    """
    scores = in_units(products, scale, EXACT)
    if PARTIAL:
        scores = tl.where(visible, scores, float("-inf"))
    larger = tl.maximum(largest, tl.max(scores, axis=1))
    # a row that has seen no key yet has larger = -inf: subtract 0 there, and not -inf from -inf
    shift = tl.where(larger == float("-inf"), 0.0, larger)
    return tl.exp2((scores - shift[:, None]) * rate), tl.exp2((largest - shift) * rate), larger


@triton.jit
def rebuilt(
    rows, columns, shift, inverse, visible, scale, rate,
    PRECISION: tl.constexpr, ACCUMULATE: tl.constexpr, EXACT: tl.constexpr, PARTIAL: tl.constexpr,
    TURNED: tl.constexpr = False,
):  # fmt: skip
    """Return P of a tile of q [rows] and one of k [columns], or with TURNED P^T of k and q, in ACCUMULATE.

    It is exactly 0 where PARTIAL and a query does not see the key. exp2 of the difference times log2(e): folding
    log2(e) into S would round |S| where this rounds |S - m|. S has the bits with which forward found m, so that P is
    1 / l at the largest score, whatever roundings S has.
    """
    products = dot(rows, turned(columns, PRECISION), PRECISION, ACCUMULATE, TURNED=TURNED)
    p = tl.exp2((in_units(products, scale, EXACT) - shift) * rate) * inverse
    if PARTIAL:
        p = tl.where(visible, p, 0.0)
    return p


@triton.jit
def score_tangent(
    q_tile, k_tile, tq_tile, tk_tile, scale, PRECISION: tl.constexpr, ACCUMULATE: tl.constexpr,
    TURNED: tl.constexpr = False,
):  # fmt: skip
    """Return S' = scale (q' k^T + q k'^T) [queries, keys], in ACCUMULATE; with TURNED S'^T, of k and q exchanged."""
    tangent = dot(tq_tile, turned(k_tile, PRECISION), PRECISION, ACCUMULATE, TURNED=TURNED)
    return dot(q_tile, turned(tk_tile, PRECISION), PRECISION, ACCUMULATE, acc=tangent, TURNED=TURNED) * scale


@triton.jit
def mean_of(total, weight):
    """Return the mean [rows] that a weighted sum gives; 0 where nothing was weighed."""
    return tl.where(weight > 0.0, total / tl.where(weight > 0.0, weight, 1.0), 0.0)
