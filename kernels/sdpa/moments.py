"""Row moments under P, which derivatives subtract before they multiply, in one sweep over the keys.

    z  = rowsum(P * dP)                               dP = G V^T
    r  = rowsum(P * S')                               S' = scale (q' K^T + Q k'^T)
    z' = rowsum(P * (dP' + (dP - z) * (S' - r)))      dP' = G v'^T

The last is rowsum(dP' * P + dP * P') with P' = P * (S' - r), centred by z at no cost since rowsum(P') = 0: a mean of dP
that is large against its spread does not cancel. In one sweep z and r are not known yet: each tile is summed about the
means of what has been seen up to its end, and what was summed before is moved there (Chan, Golub & LeVeque 1979,
"Updating formulae and a pairwise algorithm for computing sample variances", here for a weighted covariance). Nor need m
and l be known: what was summed shrinks as the running maximum grows.

z comes from dP and the unrounded P, in the accumulator's dtype; taken as rowsum(dO * O) from an O that was rounded to
16 bits it costs hundreds of sigma of dQ once logits are large.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..tiles import (
    dot,
    load_operand,
    load_own,
    padded_places,
    plane,
    program_rows,
    reciprocal,
    row_factors,
    turned,
    visible_keys,
    walk,
    whole_tiles,
)
from .guardrails import Problem, Triple
from .launch import launch, unspecialised
from .tiles import feature_columns, mean_of, online, rebuilt, score_tangent


class Moments(NamedTuple):
    """What derivatives need of each row of P, each [B, H, padded], contiguous, in the dtype of the statistics.

    `padded` is that of `blocks.padded_rows`; zeros stand past the last row.

    `shift` and `inverse` give P without a division: they are m and 1 / l as `tiles.row_factors` has them. The others
    are None where nobody asked for them.
    """

    shift: torch.Tensor | None
    inverse: torch.Tensor | None
    z: torch.Tensor | None
    r: torch.Tensor | None
    z_tangent: torch.Tensor | None


@triton.jit(**unspecialised("q", "k", "v", "g", "tq", "tk", "tv", rows=("m", "l"), contiguous=Moments._fields))
def moments_kernel(
    q, k, v, g, tq, tk, tv, m, l,
    shift, inverse, z, r, z_tangent,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c, g_b, g_h, g_r, g_c,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tv_b, tv_h, tv_r, tv_c,
    m_b, m_h, m_r, l_b, l_h, l_r,
    H, T, M, D, DV, causal_offset, padded, scale, rate,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr,
    ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    COTANGENT: tl.constexpr, TANGENT: tl.constexpr, ONLINE: tl.constexpr,
):  # fmt: skip
    """Compute the moments [BLOCK_QUERY] of one tile of queries: z with COTANGENT, r with TANGENT, z' with both.

    And in every case shift and inverse, from which every pass rebuilds P: of m and l, or with ONLINE found on the way.
    """
    index, batch, head, _, queries = program_rows(T, H, BLOCK_QUERY)
    keys = tl.arange(0, BLOCK_KEY)
    columns, score_columns, value_columns = feature_columns(D, DV, WIDTH, ALIGNED)
    existing = queries < T
    seen = visible_keys(queries, T, M, causal_offset)
    whole, last = whole_tiles(seen, existing, M, BLOCK_KEY), tl.max(seen, axis=0)
    if not ONLINE:
        row_shift, row_inverse = row_factors(
            plane(m, batch, head, m_b, m_h, False) + queries.to(tl.int64) * m_r,
            plane(l, batch, head, l_b, l_h, False) + queries.to(tl.int64) * l_r,
            existing,
            scale,
            EXACT,
        )
    scored, valued = existing[:, None] & score_columns, existing[:, None] & value_columns
    q_tile = load_own(q, batch, head, queries, columns, scored, q_b, q_h, q_r, q_c, PRECISION, ALIGNED)
    k_rows = walk(k, batch, head, keys, columns, k_b, k_h, k_r, k_c, ALIGNED)
    if COTANGENT:
        g_tile = load_own(g, batch, head, queries, columns, valued, g_b, g_h, g_r, g_c, PRECISION, ALIGNED)
        v_rows = walk(v, batch, head, keys, columns, v_b, v_h, v_r, v_c, ALIGNED)
    if TANGENT:
        tq_tile = load_own(tq, batch, head, queries, columns, scored, tq_b, tq_h, tq_r, tq_c, PRECISION, ALIGNED)
        tk_rows = walk(tk, batch, head, keys, columns, tk_b, tk_h, tk_r, tk_c, ALIGNED)

    largest = tl.full([BLOCK_QUERY], float("-inf"), ACCUMULATE)
    cotangent_mean = tl.zeros([BLOCK_QUERY], ACCUMULATE)
    tangent_mean = tl.zeros([BLOCK_QUERY], ACCUMULATE)
    weight = tl.zeros([BLOCK_QUERY], ACCUMULATE)
    mixed = tl.zeros([BLOCK_QUERY], ACCUMULATE)
    if COTANGENT and TANGENT:
        tv_rows = walk(tv, batch, head, keys, columns, tv_b, tv_h, tv_r, tv_c, ALIGNED)
    if COTANGENT or TANGENT:
        for PARTIAL in tl.static_range(2):  # the tiles that every row sees whole, then the others
            for start in range(whole if PARTIAL else 0, last if PARTIAL else whole, BLOCK_KEY):
                present = (start + keys < M)[:, None] if PARTIAL else True
                visible = (start + keys)[None, :] < seen[:, None] if PARTIAL else True
                k_tile = load_operand(k_rows, start, present & score_columns, PRECISION, ALIGNED)
                if ONLINE:
                    products = dot(q_tile, turned(k_tile, PRECISION), PRECISION, ACCUMULATE)
                    p, decay, largest = online(products, visible, largest, scale, rate, EXACT, PARTIAL)
                    weight, mixed = weight * decay, mixed * decay
                    cotangent_mean, tangent_mean = cotangent_mean * decay, tangent_mean * decay
                else:
                    p = rebuilt(
                        q_tile, k_tile, row_shift[:, None], row_inverse[:, None], visible,
                        scale, rate, PRECISION, ACCUMULATE, EXACT, PARTIAL,
                    )  # fmt: skip
                if COTANGENT and TANGENT:
                    cotangent_centre = mean_of(cotangent_mean, weight)
                    tangent_centre = mean_of(tangent_mean, weight)
                    before = weight
                if ONLINE or (COTANGENT and TANGENT):
                    weight += tl.sum(p, axis=1)
                if COTANGENT:
                    v_tile = load_operand(v_rows, start, present & value_columns, PRECISION, ALIGNED)
                    dp = dot(g_tile, turned(v_tile, PRECISION), PRECISION, ACCUMULATE)
                    cotangent_mean += tl.sum(p * dp, axis=1)
                if TANGENT:
                    tk_tile = load_operand(tk_rows, start, present & score_columns, PRECISION, ALIGNED)
                    ts = score_tangent(q_tile, k_tile, tq_tile, tk_tile, scale, PRECISION, ACCUMULATE)
                    tangent_mean += tl.sum(p * ts, axis=1)
                if COTANGENT and TANGENT:  # what was summed about the former centres is moved to the new ones
                    tv_tile = load_operand(tv_rows, start, present & value_columns, PRECISION, ALIGNED)
                    tdp = dot(g_tile, turned(tv_tile, PRECISION), PRECISION, ACCUMULATE)
                    new_cotangent = mean_of(cotangent_mean, weight)
                    new_tangent = mean_of(tangent_mean, weight)
                    moved = before * (new_cotangent - cotangent_centre) * (new_tangent - tangent_centre)
                    centred = (dp - new_cotangent[:, None]) * (ts - new_tangent[:, None])
                    mixed += moved + tl.sum(p * (tdp + centred), axis=1)
    if ONLINE:
        sees = weight != 0.0
        row_shift, row_inverse = tl.where(sees, largest, 0.0), reciprocal(tl.where(sees, weight, 1.0), sees)
        cotangent_mean, tangent_mean = cotangent_mean * row_inverse, tangent_mean * row_inverse
        mixed = mixed * row_inverse
    places = padded_places(index, padded, queries)
    tl.store(shift + places, row_shift, mask=existing)
    tl.store(inverse + places, row_inverse, mask=existing)
    if COTANGENT:
        tl.store(z + places, cotangent_mean, mask=existing)
    if TANGENT:
        tl.store(r + places, tangent_mean, mask=existing)
    if COTANGENT and TANGENT:
        tl.store(z_tangent + places, mixed, mask=existing)


def zeros(problem: Problem, like: torch.Tensor, *, cotangent: bool, tangent: bool) -> Moments:
    """Return moments that nothing wrote yet, of a cotangent, a tangent, or both: zeros, as past the last row."""
    expected = (True, True, cotangent, tangent, cotangent and tangent)
    shape = (sum(expected), problem.batch, problem.heads, problem.padded)
    made = iter(like.new_zeros(shape, dtype=problem.statistics_dtype).unbind())
    return Moments(*(next(made) if each else None for each in expected))


def run(
    problem: Problem,
    primals: Triple,
    m: torch.Tensor | None,
    l: torch.Tensor | None,
    *,
    g: torch.Tensor | None = None,
    tangents: Triple | None = None,
) -> Moments:
    """Return the moments of a checked problem: z where g is given, r where tangents are.

    Primals, g and tangents may be parts (`splitting`). Without m and l, which takes g or tangents, they are found in
    the same sweep; sums of P before its division by l are finite where those of P are, up to a factor l.
    """
    assert m is not None or g is not None or tangents is not None
    q, k, v = primals
    tq, tk, tv = tangents or (q, k, v)
    found = zeros(problem, q, cotangent=g is not None, tangent=tangents is not None)
    launch(
        moments_kernel,
        problem,
        planes=(q, k, v, q if g is None else g, tq, tk, tv),
        rows=(found.shift, found.inverse) if m is None or l is None else (m, l),
        contiguous=found,
        over="query",
        part="z'" if found.z_tangent is not None else "r" if tangents is not None else "z",
        COTANGENT=g is not None,
        TANGENT=tangents is not None,
        ONLINE=m is None,
    )
    return found
