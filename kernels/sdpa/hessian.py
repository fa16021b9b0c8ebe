"""Exact HVP of <G, O> along (q', k', v'), in closed form and O(T + M) extra memory: forward over reverse.

    P' = P * (S' - r)          dS = P * (dP - z)          dS' = P * ((S' - r) * (dP - z) + dP' - z')
    Hq = scale (dS' K + dS k')          Hk = scale (dS'^T Q + dS^T q')          Hv = P'^T G

with S', dP', r, z and z' as in moments.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tiles import first_query, plane, statistics, visible_keys
from . import moments
from .guardrails import Gradients, Problem, Triple
from .launch import launch, unspecialised
from .tiles import (
    feature_columns,
    load_step,
    load_tile,
    program_rows,
    query_statistics,
    rebuilt,
    score_tangent,
    store_tile,
    walk,
)


@triton.jit(
    **unspecialised("q", "k", "v", "g", "tq", "tk", "tv", rows=("m", "l"), contiguous=("z", "r", "z_tangent", "hq"))
)
def query_hvp_kernel(
    q, k, v, g, tq, tk, tv, m, l,
    z, r, z_tangent, hq,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c, g_b, g_h, g_r, g_c,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tv_b, tv_h, tv_r, tv_c,
    m_b, m_h, m_r, l_b, l_h, l_r,
    H, T, M, D, DV, causal_offset, scale,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr,
    ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute hq [BLOCK_QUERY, D] of one tile of queries.

    Rounded to the dtype of q: dS' and dS, as operands of their dots, and hq, after the scale. All else is ACCUMULATE.
    """
    index, batch, head, _, queries = program_rows(T, H, BLOCK_QUERY)
    keys = tl.arange(0, BLOCK_KEY)
    columns, score_columns, value_columns = feature_columns(D, DV, WIDTH, ALIGNED)
    existing = queries < T
    seen = visible_keys(queries, T, M, causal_offset)
    row_max, inverse_sum = query_statistics(m, l, batch, head, queries, existing, m_b, m_h, m_r, l_b, l_h, l_r)
    row_offsets = index.to(tl.int64) * T + queries
    cotangent_mean = tl.load(z + row_offsets, mask=existing, other=0.0)
    tangent_mean = tl.load(r + row_offsets, mask=existing, other=0.0)
    mixed = tl.load(z_tangent + row_offsets, mask=existing, other=0.0)
    q_tile = load_tile(q, batch, head, queries, columns, existing[:, None] & score_columns, q_b, q_h, q_r, q_c, ALIGNED)
    tq_tile = load_tile(
        tq, batch, head, queries, columns, existing[:, None] & score_columns, tq_b, tq_h, tq_r, tq_c, ALIGNED
    )
    g_tile = load_tile(g, batch, head, queries, columns, existing[:, None] & value_columns, g_b, g_h, g_r, g_c, ALIGNED)
    k_rows = walk(k, batch, head, keys, columns, k_b, k_h, k_r, k_c, ALIGNED)
    v_rows = walk(v, batch, head, keys, columns, v_b, v_h, v_r, v_c, ALIGNED)
    tk_rows = walk(tk, batch, head, keys, columns, tk_b, tk_h, tk_r, tk_c, ALIGNED)
    tv_rows = walk(tv, batch, head, keys, columns, tv_b, tv_h, tv_r, tv_c, ALIGNED)

    second = tl.zeros([BLOCK_QUERY, WIDTH], ACCUMULATE)
    for start in range(0, tl.max(seen, axis=0), BLOCK_KEY):
        present = (start + keys < M)[:, None]
        visible = (start + keys)[None, :] < seen[:, None]
        k_tile = load_step(k_rows, start, present & score_columns, ALIGNED)
        v_tile = load_step(v_rows, start, present & value_columns, ALIGNED)
        tk_tile = load_step(tk_rows, start, present & score_columns, ALIGNED)
        tv_tile = load_step(tv_rows, start, present & value_columns, ALIGNED)
        p = rebuilt(q_tile, k_tile, visible, row_max, inverse_sum, scale, PRECISION, ACCUMULATE)
        ts = score_tangent(q_tile, k_tile, tq_tile, tk_tile, scale, PRECISION, ACCUMULATE)
        dp = tl.dot(g_tile, tl.trans(v_tile), input_precision=PRECISION, out_dtype=ACCUMULATE)
        tdp = tl.dot(g_tile, tl.trans(tv_tile), input_precision=PRECISION, out_dtype=ACCUMULATE)
        dp = dp - cotangent_mean[:, None]
        tds = (p * ((ts - tangent_mean[:, None]) * dp + (tdp - mixed[:, None]))).to(k_tile.dtype)
        ds = (p * dp).to(k_tile.dtype)
        second = tl.dot(tds, k_tile, acc=second, input_precision=PRECISION, out_dtype=ACCUMULATE)
        second = tl.dot(ds, tk_tile, acc=second, input_precision=PRECISION, out_dtype=ACCUMULATE)

    store_tile(hq, index, T, D, queries, columns, second * scale, existing[:, None] & score_columns, ALIGNED)


@triton.jit(
    **unspecialised(
        "q", "k", "v", "g", "tq", "tk", "tv", rows=("m", "l"), contiguous=("z", "r", "z_tangent", "hk", "hv")
    )
)
def key_hvp_kernel(
    q, k, v, g, tq, tk, tv, m, l,
    z, r, z_tangent, hk, hv,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c, g_b, g_h, g_r, g_c,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tv_b, tv_h, tv_r, tv_c,
    m_b, m_h, m_r, l_b, l_h, l_r,
    H, T, M, D, DV, causal_offset, scale,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr,
    ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr, PRECISION: tl.constexpr,
    NEEDS_K: tl.constexpr, NEEDS_V: tl.constexpr,
):  # fmt: skip
    """Compute hk [BLOCK_KEY, D] and hv [BLOCK_KEY, DV] of one tile of keys.

    Rounded to the dtype of q: dS', dS and P', as operands of their dots, hk, after the scale, and hv. All else is
    ACCUMULATE.
    """
    index, batch, head, tile, keys = program_rows(M, H, BLOCK_KEY)
    rows = tl.arange(0, BLOCK_QUERY)
    columns, score_columns, value_columns = feature_columns(D, DV, WIDTH, ALIGNED)
    present = (keys < M)[:, None]
    k_tile = load_tile(k, batch, head, keys, columns, present & score_columns, k_b, k_h, k_r, k_c, ALIGNED)
    tk_tile = load_tile(tk, batch, head, keys, columns, present & score_columns, tk_b, tk_h, tk_r, tk_c, ALIGNED)
    q_rows = walk(q, batch, head, rows, columns, q_b, q_h, q_r, q_c, ALIGNED)
    tq_rows = walk(tq, batch, head, rows, columns, tq_b, tq_h, tq_r, tq_c, ALIGNED)
    g_rows = walk(g, batch, head, rows, columns, g_b, g_h, g_r, g_c, ALIGNED)
    m_plane = plane(m, batch, head, m_b, m_h, False)
    l_plane = plane(l, batch, head, l_b, l_h, False)
    r_plane = r + index.to(tl.int64) * T
    if NEEDS_K:
        v_tile = load_tile(v, batch, head, keys, columns, present & value_columns, v_b, v_h, v_r, v_c, ALIGNED)
        tv_tile = load_tile(tv, batch, head, keys, columns, present & value_columns, tv_b, tv_h, tv_r, tv_c, ALIGNED)
        z_plane = z + index.to(tl.int64) * T
        z_tangent_plane = z_tangent + index.to(tl.int64) * T

    k_second = tl.zeros([BLOCK_KEY, WIDTH], ACCUMULATE)
    v_second = tl.zeros([BLOCK_KEY, WIDTH], ACCUMULATE)
    for start in range(first_query(tile * BLOCK_KEY, causal_offset, BLOCK_QUERY), T, BLOCK_QUERY):
        queries = start + rows
        existing = queries < T
        visible = keys[None, :] < visible_keys(queries, T, M, causal_offset)[:, None]
        row_max, inverse_sum = statistics(
            m_plane + queries.to(tl.int64) * m_r, l_plane + queries.to(tl.int64) * l_r, existing
        )
        tangent_mean = tl.load(r_plane + queries, mask=existing, other=0.0)
        q_tile = load_step(q_rows, start, existing[:, None] & score_columns, ALIGNED)
        tq_tile = load_step(tq_rows, start, existing[:, None] & score_columns, ALIGNED)
        g_tile = load_step(g_rows, start, existing[:, None] & value_columns, ALIGNED)
        p = rebuilt(q_tile, k_tile, visible, row_max, inverse_sum, scale, PRECISION, ACCUMULATE)
        ts = score_tangent(q_tile, k_tile, tq_tile, tk_tile, scale, PRECISION, ACCUMULATE)
        ts = ts - tangent_mean[:, None]
        if NEEDS_V:
            tp = tl.trans((p * ts).to(g_tile.dtype))
            v_second = tl.dot(tp, g_tile, acc=v_second, input_precision=PRECISION, out_dtype=ACCUMULATE)
        if NEEDS_K:
            cotangent_mean = tl.load(z_plane + queries, mask=existing, other=0.0)
            mixed = tl.load(z_tangent_plane + queries, mask=existing, other=0.0)
            dp = tl.dot(g_tile, tl.trans(v_tile), input_precision=PRECISION, out_dtype=ACCUMULATE)
            tdp = tl.dot(g_tile, tl.trans(tv_tile), input_precision=PRECISION, out_dtype=ACCUMULATE)
            dp = dp - cotangent_mean[:, None]
            tds = tl.trans((p * (ts * dp + (tdp - mixed[:, None]))).to(q_tile.dtype))
            ds = tl.trans((p * dp).to(q_tile.dtype))
            k_second = tl.dot(tds, q_tile, acc=k_second, input_precision=PRECISION, out_dtype=ACCUMULATE)
            k_second = tl.dot(ds, tq_tile, acc=k_second, input_precision=PRECISION, out_dtype=ACCUMULATE)

    if NEEDS_K:
        store_tile(hk, index, M, D, keys, columns, k_second * scale, present & score_columns, ALIGNED)
    if NEEDS_V:
        store_tile(hv, index, M, DV, keys, columns, v_second, present & value_columns, ALIGNED)


def run(
    problem: Problem,
    primals: Triple,
    g: torch.Tensor,
    tangents: Triple,
    m: torch.Tensor,
    l: torch.Tensor,
    needs: tuple[bool, bool, bool],
) -> Gradients:
    """Return contiguous hq, hk, hv of a checked problem, None where not needed; hv alone needs no moment but r."""
    hq, hk, hv = (
        torch.empty(primal.shape, dtype=primal.dtype, device=primal.device) if need else None
        for primal, need in zip(primals, needs, strict=True)
    )
    all_moments = needs[0] or needs[1]
    z, r, z_tangent = moments.run(problem, primals, m, l, g=g if all_moments else None, tangents=tangents)
    planes, rows = (*primals, g, *tangents), (m, l)
    if needs[0]:
        launch(
            query_hvp_kernel,
            problem,
            planes=planes,
            rows=rows,
            contiguous=(z, r, z_tangent, hq),
            over="query",
            derivative=2,
        )
    if needs[1] or needs[2]:
        launch(
            key_hvp_kernel,
            problem,
            planes=planes,
            rows=rows,
            contiguous=(z, r, z_tangent, hk, hv),
            over="key",
            derivative=2,
            NEEDS_K=needs[1],
            NEEDS_V=needs[2],
        )
    return hq, hk, hv
