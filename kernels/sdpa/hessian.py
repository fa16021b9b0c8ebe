"""Exact HVP of <G, O> along (q', k', v'), in closed form and O(T + M) extra memory: forward over reverse.

    P' = P * (S' - r)          dS = P * (dP - z)          dS' = P * ((S' - r) * (dP - z) + dP' - z')
    Hq = scale (dS' K + dS k')          Hk = scale (dS'^T Q + dS^T q')          Hv = P'^T G

with S', dP', r, z and z' as in moments.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tiles import (
    dot,
    load_factors,
    load_operand,
    load_own,
    operand,
    padded_places,
    program_rows,
    store_tile,
    turned,
    visible_keys,
    walk,
    whole_queries,
    whole_tiles,
)
from . import moments
from .guardrails import Gradients, Problem, Triple
from .launch import launch, unspecialised
from .tiles import feature_columns, rebuilt, score_tangent


@triton.jit(**unspecialised("q", "k", "v", "g", "tq", "tk", "tv", contiguous=(*moments.Moments._fields, "hq")))
def query_hvp_kernel(
    q, k, v, g, tq, tk, tv,
    shift, inverse, z, r, z_tangent, hq,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c, g_b, g_h, g_r, g_c,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tv_b, tv_h, tv_r, tv_c,
    H, T, M, D, DV, causal_offset, padded, scale, rate,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr,
    ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Compute hq [BLOCK_QUERY, D] of one tile of queries.

    Rounded to the dtype of q: dS' and dS, as operands of their dots, and hq, after the scale. All else is ACCUMULATE.
    """
    index, batch, head, _, queries = program_rows(T, H, BLOCK_QUERY)
    keys = tl.arange(0, BLOCK_KEY)
    columns, score_columns, value_columns = feature_columns(D, DV, WIDTH, ALIGNED)
    existing = queries < T
    seen = visible_keys(queries, T, M, causal_offset)
    whole, last = whole_tiles(seen, existing, M, BLOCK_KEY), tl.max(seen, axis=0)
    row_shift, row_inverse = load_factors(shift, inverse, index, padded, queries)
    places = padded_places(index, padded, queries)
    cotangent_mean = tl.load(z + places)
    tangent_mean = tl.load(r + places)
    mixed = tl.load(z_tangent + places)
    scored, valued = existing[:, None] & score_columns, existing[:, None] & value_columns
    q_tile = load_own(q, batch, head, queries, columns, scored, q_b, q_h, q_r, q_c, PRECISION, ALIGNED)
    tq_tile = load_own(tq, batch, head, queries, columns, scored, tq_b, tq_h, tq_r, tq_c, PRECISION, ALIGNED)
    g_tile = load_own(g, batch, head, queries, columns, valued, g_b, g_h, g_r, g_c, PRECISION, ALIGNED)
    k_rows = walk(k, batch, head, keys, columns, k_b, k_h, k_r, k_c, ALIGNED)
    v_rows = walk(v, batch, head, keys, columns, v_b, v_h, v_r, v_c, ALIGNED)
    tk_rows = walk(tk, batch, head, keys, columns, tk_b, tk_h, tk_r, tk_c, ALIGNED)
    tv_rows = walk(tv, batch, head, keys, columns, tv_b, tv_h, tv_r, tv_c, ALIGNED)

    second = tl.zeros([BLOCK_QUERY, WIDTH], ACCUMULATE)
    for PARTIAL in tl.static_range(2):  # the tiles that every row sees whole, then the others
        for start in range(whole if PARTIAL else 0, last if PARTIAL else whole, BLOCK_KEY):
            present = (start + keys < M)[:, None] if PARTIAL else True
            visible = (start + keys)[None, :] < seen[:, None] if PARTIAL else True
            k_tile = load_operand(k_rows, start, present & score_columns, PRECISION, ALIGNED)
            v_tile = load_operand(v_rows, start, present & value_columns, PRECISION, ALIGNED)
            tk_tile = load_operand(tk_rows, start, present & score_columns, PRECISION, ALIGNED)
            tv_tile = load_operand(tv_rows, start, present & value_columns, PRECISION, ALIGNED)
            p = rebuilt(
                q_tile, k_tile, row_shift[:, None], row_inverse[:, None], visible,
                scale, rate, PRECISION, ACCUMULATE, EXACT, PARTIAL,
            )  # fmt: skip
            ts = score_tangent(q_tile, k_tile, tq_tile, tk_tile, scale, PRECISION, ACCUMULATE)
            dp = dot(g_tile, turned(v_tile, PRECISION), PRECISION, ACCUMULATE)
            tdp = dot(g_tile, turned(tv_tile, PRECISION), PRECISION, ACCUMULATE)
            dp = dp - cotangent_mean[:, None]
            tds = p * ((ts - tangent_mean[:, None]) * dp + (tdp - mixed[:, None]))
            second = dot(operand(tds, k_rows, PRECISION), k_tile, PRECISION, ACCUMULATE, acc=second)
            second = dot(operand(p * dp, k_rows, PRECISION), tk_tile, PRECISION, ACCUMULATE, acc=second)

    store_tile(hq, index, T, D, queries, columns, second * scale, scored, ALIGNED)


@triton.jit(**unspecialised("q", "k", "v", "g", "tq", "tk", "tv", contiguous=(*moments.Moments._fields, "hk", "hv")))
def key_hvp_kernel(
    q, k, v, g, tq, tk, tv,
    shift, inverse, z, r, z_tangent, hk, hv,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c, g_b, g_h, g_r, g_c,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tv_b, tv_h, tv_r, tv_c,
    H, T, M, D, DV, causal_offset, padded, scale, rate,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr,
    ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    NEEDS_K: tl.constexpr, NEEDS_V: tl.constexpr,
):  # fmt: skip
    """Compute hk [BLOCK_KEY, D] and hv [BLOCK_KEY, DV] of one tile of keys.

    Rounded to the dtype of q: dS', dS and P', as operands of their dots, hk, after the scale, and hv. All else is
    ACCUMULATE.
    """
    index, batch, head, _, keys = program_rows(M, H, BLOCK_KEY)
    rows = tl.arange(0, BLOCK_QUERY)
    columns, score_columns, value_columns = feature_columns(D, DV, WIDTH, ALIGNED)
    present = (keys < M)[:, None]
    scored, valued = present & score_columns, present & value_columns
    k_tile = load_own(k, batch, head, keys, columns, scored, k_b, k_h, k_r, k_c, PRECISION, ALIGNED)
    tk_tile = load_own(tk, batch, head, keys, columns, scored, tk_b, tk_h, tk_r, tk_c, PRECISION, ALIGNED)
    q_rows = walk(q, batch, head, rows, columns, q_b, q_h, q_r, q_c, ALIGNED)
    tq_rows = walk(tq, batch, head, rows, columns, tq_b, tq_h, tq_r, tq_c, ALIGNED)
    g_rows = walk(g, batch, head, rows, columns, g_b, g_h, g_r, g_c, ALIGNED)
    first, whole = whole_queries(keys, M, causal_offset, BLOCK_QUERY)
    if NEEDS_K:
        v_tile = load_own(v, batch, head, keys, columns, valued, v_b, v_h, v_r, v_c, PRECISION, ALIGNED)
        tv_tile = load_own(tv, batch, head, keys, columns, valued, tv_b, tv_h, tv_r, tv_c, PRECISION, ALIGNED)

    k_second = tl.zeros([BLOCK_KEY, WIDTH], ACCUMULATE)
    v_second = tl.zeros([BLOCK_KEY, WIDTH], ACCUMULATE)
    for PARTIAL in tl.static_range(2):  # the tiles whose rows all see every key, then those before them
        for start in range(first if PARTIAL else whole, tl.minimum(whole, T) if PARTIAL else T, BLOCK_QUERY):
            queries = start + rows
            existing = queries < T
            visible = keys[:, None] < visible_keys(queries, T, M, causal_offset)[None, :] if PARTIAL else True
            row_shift, row_inverse = load_factors(shift, inverse, index, padded, queries)
            places = padded_places(index, padded, queries)
            tangent_mean = tl.load(r + places)
            q_tile = load_operand(q_rows, start, existing[:, None] & score_columns, PRECISION, ALIGNED)
            tq_tile = load_operand(tq_rows, start, existing[:, None] & score_columns, PRECISION, ALIGNED)
            g_tile = load_operand(g_rows, start, existing[:, None] & value_columns, PRECISION, ALIGNED)
            p = rebuilt(
                k_tile, q_tile, row_shift[None, :], row_inverse[None, :], visible,
                scale, rate, PRECISION, ACCUMULATE, EXACT, PARTIAL, TURNED=True,
            )  # fmt: skip
            ts = score_tangent(k_tile, q_tile, tk_tile, tq_tile, scale, PRECISION, ACCUMULATE, TURNED=True)
            ts = ts - tangent_mean[None, :]
            if NEEDS_V:
                tp = operand(p * ts, g_rows, PRECISION)
                v_second = dot(tp, g_tile, PRECISION, ACCUMULATE, acc=v_second)
            if NEEDS_K:
                cotangent_mean = tl.load(z + places)
                mixed = tl.load(z_tangent + places)
                dp = dot(v_tile, turned(g_tile, PRECISION), PRECISION, ACCUMULATE, TURNED=True)
                tdp = dot(tv_tile, turned(g_tile, PRECISION), PRECISION, ACCUMULATE, TURNED=True)
                dp = dp - cotangent_mean[None, :]
                tds = p * (ts * dp + (tdp - mixed[None, :]))
                k_second = dot(operand(tds, q_rows, PRECISION), q_tile, PRECISION, ACCUMULATE, acc=k_second)
                k_second = dot(operand(p * dp, q_rows, PRECISION), tq_tile, PRECISION, ACCUMULATE, acc=k_second)

    if NEEDS_K:
        store_tile(hk, index, M, D, keys, columns, k_second * scale, scored, ALIGNED)
    if NEEDS_V:
        store_tile(hv, index, M, DV, keys, columns, v_second, valued, ALIGNED)


def run(
    problem: Problem,
    primals: Triple,
    g: torch.Tensor,
    tangents: Triple,
    needs: tuple[bool, bool, bool],
) -> Gradients:
    """Return contiguous hq, hk, hv of a checked problem, None where not needed; hv alone needs no moment but r.

    The sweep that makes the moments finds m and l too: nobody needs to know them.
    """
    hq, hk, hv = (
        torch.empty(primal.shape, dtype=primal.dtype, device=primal.device) if need else None
        for primal, need in zip(primals, needs, strict=True)
    )
    found = moments.run(problem, primals, None, None, g=g if needs[0] or needs[1] else None, tangents=tangents)
    planes = (*primals, g, *tangents)
    if needs[0]:
        launch(query_hvp_kernel, problem, planes=planes, contiguous=(*found, hq), over="query", part="hq")
    if needs[1] or needs[2]:
        launch(
            key_hvp_kernel,
            problem,
            planes=planes,
            contiguous=(*found, hk, hv),
            over="key",
            part="hk, hv",
            NEEDS_K=needs[1],
            NEEDS_V=needs[2],
        )
    return hq, hk, hv
