"""VJP: dQ over tiles of queries, dK and dV over tiles of keys; no atomics, so every run gives the same bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..splitting import operands
from ..tiles import (
    dot,
    load_factors,
    load_operand,
    load_own,
    load_tile,
    operand,
    padded_places,
    plane,
    program_rows,
    row_factors,
    store_tile,
    turned,
    values_of,
    visible_keys,
    walk,
    whole_queries,
    whole_tiles,
)
from . import moments
from .guardrails import Gradients, Problem, Triple
from .launch import launch, unspecialised
from .tiles import feature_columns, rebuilt


@triton.jit
def swept(
    q_tile, g_tile, k_rows, v_rows, seen, whole, last, M, score_columns, value_columns,
    row_shift, row_inverse, mean, scale, rate,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr,
    ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    CENTRED: tl.constexpr, NEEDS_Q: tl.constexpr,
):  # fmt: skip
    """Sweep over the keys: return dS K and P K [BLOCK_QUERY, D], and rowsum(dS), where dS = P * (dP - mean).

    Without CENTRED the last two, and without NEEDS_Q the first two, are 0.
    """
    keys = tl.arange(0, BLOCK_KEY)
    gradient = tl.zeros([BLOCK_QUERY, WIDTH], ACCUMULATE)
    averaged = tl.zeros([BLOCK_QUERY, WIDTH], ACCUMULATE)
    missing = tl.zeros(mean.shape, ACCUMULATE)
    for PARTIAL in tl.static_range(2):  # the tiles that every row sees whole, then the others
        for start in range(whole if PARTIAL else 0, last if PARTIAL else whole, BLOCK_KEY):
            present = (start + keys < M)[:, None] if PARTIAL else True
            visible = (start + keys)[None, :] < seen[:, None] if PARTIAL else True
            k_tile = load_operand(k_rows, start, present & score_columns, PRECISION, ALIGNED)
            v_tile = load_operand(v_rows, start, present & value_columns, PRECISION, ALIGNED)
            p = rebuilt(
                q_tile, k_tile, row_shift[:, None], row_inverse[:, None], visible,
                scale, rate, PRECISION, ACCUMULATE, EXACT, PARTIAL,
            )  # fmt: skip
            dp = dot(g_tile, turned(v_tile, PRECISION), PRECISION, ACCUMULATE)
            ds = p * (dp - mean[:, None])
            if CENTRED:
                missing += tl.sum(ds, axis=1)
            if NEEDS_Q:
                gradient = dot(operand(ds, k_rows, PRECISION), k_tile, PRECISION, ACCUMULATE, acc=gradient)
                if CENTRED:
                    averaged = dot(operand(p, k_rows, PRECISION), k_tile, PRECISION, ACCUMULATE, acc=averaged)
    return gradient, averaged, missing


@triton.jit(**unspecialised("q", "k", "v", "g", "o", rows=("m", "l"), contiguous=("shift", "inverse", "z", "dq")))
def query_kernel(
    q, k, v, g, o, m, l,
    shift, inverse, z, dq,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c, g_b, g_h, g_r, g_c, o_b, o_h, o_r, o_c,
    m_b, m_h, m_r, l_b, l_h, l_r,
    H, T, M, D, DV, causal_offset, padded, scale, rate,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr,
    ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    CENTRED: tl.constexpr, NEEDS_Q: tl.constexpr,
):  # fmt: skip
    """Compute dq [BLOCK_QUERY, D] of one tile of queries: scale * (P * (dP - z)) K.

    With CENTRED the moments are made here, from the output o, and stored. z0 = rowsum(G * o) of an o that was rounded
    is near z, and what is missing is eps = rowsum(P * (dP - z0)): dq = scale * ((P * (dP - z0)) K - eps P K), and
    z = z0 + eps. Without NEEDS_Q they are made for dk.

    The operand P * (dP - z0) is dS + eps P, and its rounding that of dS as long as eps P K is small beside dq. Where
    one key takes a row, or rows of v are alike, dS may be the smaller: rows whose eps P K is more than a quarter of
    their dq are computed again, about z0 + eps. What a row gets depends on no other row.

    Rounded to the dtype of q: dS = P * (dP - z), or P * (dP - z0) and P, as operands of dots with k, and dq, after the
    scale. All else is ACCUMULATE.
    """
    index, batch, head, _, queries = program_rows(T, H, BLOCK_QUERY)
    keys = tl.arange(0, BLOCK_KEY)
    columns, score_columns, value_columns = feature_columns(D, DV, WIDTH, ALIGNED)
    existing = queries < T
    seen = visible_keys(queries, T, M, causal_offset)
    whole, last = whole_tiles(seen, existing, M, BLOCK_KEY), tl.max(seen, axis=0)
    places = padded_places(index, padded, queries)
    scored, valued = existing[:, None] & score_columns, existing[:, None] & value_columns
    q_tile = load_own(q, batch, head, queries, columns, scored, q_b, q_h, q_r, q_c, PRECISION, ALIGNED)
    g_tile = load_own(g, batch, head, queries, columns, valued, g_b, g_h, g_r, g_c, PRECISION, ALIGNED)
    if CENTRED:
        row_shift, row_inverse = row_factors(
            plane(m, batch, head, m_b, m_h, False) + queries.to(tl.int64) * m_r,
            plane(l, batch, head, l_b, l_h, False) + queries.to(tl.int64) * l_r,
            existing,
            scale,
            EXACT,
        )
        o_tile = load_tile(o, batch, head, queries, columns, valued, o_b, o_h, o_r, o_c, ALIGNED)
        mean = tl.sum(values_of(g_tile, PRECISION, ACCUMULATE) * o_tile.to(ACCUMULATE), axis=1)
    else:
        row_shift, row_inverse = load_factors(shift, inverse, index, padded, queries)
        mean = tl.load(z + places)
    k_rows = walk(k, batch, head, keys, columns, k_b, k_h, k_r, k_c, ALIGNED)
    v_rows = walk(v, batch, head, keys, columns, v_b, v_h, v_r, v_c, ALIGNED)

    gradient, averaged, missing = swept(
        q_tile, g_tile, k_rows, v_rows, seen, whole, last, M, score_columns, value_columns,
        row_shift, row_inverse, mean, scale, rate,
        BLOCK_QUERY, BLOCK_KEY, WIDTH, ALIGNED, ACCUMULATE, PRECISION, EXACT, CENTRED, NEEDS_Q,
    )  # fmt: skip
    if CENTRED:
        mean += missing
        tl.store(shift + places, row_shift, mask=existing)
        tl.store(inverse + places, row_inverse, mask=existing)
        tl.store(z + places, mean, mask=existing)
    if NEEDS_Q:
        if CENTRED:
            taken = missing[:, None] * averaged
            gradient -= taken
            lost = tl.max(tl.abs(taken), axis=1) * 4.0 > tl.max(tl.abs(gradient), axis=1)
            if tl.max(lost.to(tl.int32)[None, :]) > 0:  # of rows, Triton cannot compile it for sm_100
                again, averaged, missing = swept(
                    q_tile, g_tile, k_rows, v_rows, seen, whole, last, M, score_columns, value_columns,
                    row_shift, row_inverse, mean, scale, rate,
                    BLOCK_QUERY, BLOCK_KEY, WIDTH, ALIGNED, ACCUMULATE, PRECISION, EXACT, True, True,
                )  # fmt: skip
                gradient = tl.where(lost[:, None], again - missing[:, None] * averaged, gradient)
        store_tile(dq, index, T, D, queries, columns, gradient * scale, scored, ALIGNED)


@triton.jit(**unspecialised("q", "k", "v", "g", contiguous=("shift", "inverse", "z", "dk", "dv")))
def key_kernel(
    q, k, v, g,
    shift, inverse, z, dk, dv,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c, g_b, g_h, g_r, g_c,
    H, T, M, D, DV, causal_offset, padded, scale, rate,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr,
    ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    NEEDS_K: tl.constexpr, NEEDS_V: tl.constexpr,
):  # fmt: skip
    """Compute dk [BLOCK_KEY, D] = scale * dS^T Q and dv [BLOCK_KEY, DV] = P^T G of one tile of keys.

    P^T and dS^T come out transposed, as operands of those dots: no tile goes through memory to be turned over.
    Rounded to the dtype of q: dS and P, as operands of those dots, dk, after the scale, and dv. All else is ACCUMULATE.
    """
    index, batch, head, _, keys = program_rows(M, H, BLOCK_KEY)
    rows = tl.arange(0, BLOCK_QUERY)
    columns, score_columns, value_columns = feature_columns(D, DV, WIDTH, ALIGNED)
    present = (keys < M)[:, None]
    scored, valued = present & score_columns, present & value_columns
    k_tile = load_own(k, batch, head, keys, columns, scored, k_b, k_h, k_r, k_c, PRECISION, ALIGNED)
    q_rows = walk(q, batch, head, rows, columns, q_b, q_h, q_r, q_c, ALIGNED)
    g_rows = walk(g, batch, head, rows, columns, g_b, g_h, g_r, g_c, ALIGNED)
    first, whole = whole_queries(keys, M, causal_offset, BLOCK_QUERY)
    if NEEDS_K:
        v_tile = load_own(v, batch, head, keys, columns, valued, v_b, v_h, v_r, v_c, PRECISION, ALIGNED)

    k_gradient = tl.zeros([BLOCK_KEY, WIDTH], ACCUMULATE)
    v_gradient = tl.zeros([BLOCK_KEY, WIDTH], ACCUMULATE)
    for PARTIAL in tl.static_range(2):  # the tiles whose rows all see every key, then those before them
        for start in range(first if PARTIAL else whole, tl.minimum(whole, T) if PARTIAL else T, BLOCK_QUERY):
            queries = start + rows
            existing = queries < T
            visible = keys[:, None] < visible_keys(queries, T, M, causal_offset)[None, :] if PARTIAL else True
            row_shift, row_inverse = load_factors(shift, inverse, index, padded, queries)
            q_tile = load_operand(q_rows, start, existing[:, None] & score_columns, PRECISION, ALIGNED)
            g_tile = load_operand(g_rows, start, existing[:, None] & value_columns, PRECISION, ALIGNED)
            p = rebuilt(
                k_tile, q_tile, row_shift[None, :], row_inverse[None, :], visible,
                scale, rate, PRECISION, ACCUMULATE, EXACT, PARTIAL, TURNED=True,
            )  # fmt: skip
            if NEEDS_K:  # asked for before P is used: a GPU multiplies beside the exponentials
                dp = dot(v_tile, turned(g_tile, PRECISION), PRECISION, ACCUMULATE, TURNED=True)
            if NEEDS_V:
                v_gradient = dot(operand(p, g_rows, PRECISION), g_tile, PRECISION, ACCUMULATE, acc=v_gradient)
            if NEEDS_K:
                mean = tl.load(z + padded_places(index, padded, queries))
                ds = operand(p * (dp - mean[None, :]), q_rows, PRECISION)
                k_gradient = dot(ds, q_tile, PRECISION, ACCUMULATE, acc=k_gradient)

    if NEEDS_K:
        store_tile(dk, index, M, D, keys, columns, k_gradient * scale, scored, ALIGNED)
    if NEEDS_V:
        store_tile(dv, index, M, DV, keys, columns, v_gradient, valued, ALIGNED)


def run(
    problem: Problem,
    primals: Triple,
    g: torch.Tensor,
    m: torch.Tensor,
    l: torch.Tensor,
    needs: tuple[bool, bool, bool],
    o: torch.Tensor | None = None,
) -> Gradients:
    """Return contiguous dq, dk, dv of a checked problem, None where not needed.

    Args:
        problem: checked.
        primals: q, k, v.
        g: the cotangent.
        m, l: the statistics.
        needs: which of dq, dk, dv to compute.
        o: the output of these very m and l, with which dq needs no pass of moments before it; None: not known.
    """
    dq, dk, dv = (
        torch.empty(primal.shape, dtype=primal.dtype, device=primal.device) if need else None
        for primal, need in zip(primals, needs, strict=True)
    )
    centred = o is not None and (needs[0] or needs[1])
    read = primals if needs[0] or needs[1] else (*primals[:2], primals[1])  # for dv alone nothing reads v
    q, k, v, cotangent = planes = operands(problem.precision, *read, g)
    if centred:
        factors = moments.zeros(problem, q, cotangent=True, tangent=False)[:3]
    else:
        factors = moments.run(problem, (q, k, v), m, l, g=cotangent if needs[0] or needs[1] else None)[:3]
    if needs[0] or centred:
        launch(
            query_kernel,
            problem,
            planes=(*planes, g if o is None else o),
            rows=(m, l),
            contiguous=(*factors, dq),
            over="query",
            part="dq",
            CENTRED=centred,
            NEEDS_Q=needs[0],
        )
    if needs[1] or needs[2]:
        launch(
            key_kernel,
            problem,
            planes=planes,
            contiguous=(*factors, dk, dv),
            over="key",
            part="dk, dv",
            NEEDS_K=needs[1],
            NEEDS_V=needs[2],
        )
    return dq, dk, dv
