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
    below,
    columns_within,
    first_query,
    offsets,
    output_plane,
    plane,
    probabilities,
    statistics,
    visible_keys,
)
from . import moments
from .guardrails import Gradients, Problem, Triple
from .launch import launch, unspecialised


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
    tiles = tl.cdiv(T, BLOCK_QUERY)
    index, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    batch, head = index // H, index % H
    queries = tile * BLOCK_QUERY + tl.arange(0, BLOCK_QUERY)
    keys = tl.arange(0, BLOCK_KEY)
    columns = tl.arange(0, WIDTH)
    score_columns = columns_within(columns, D, ALIGNED)
    value_columns = columns_within(columns, DV, ALIGNED)
    existing = queries < T
    seen = visible_keys(queries, T, M, causal_offset)
    row_max, inverse_sum = statistics(
        plane(m, batch, head, m_b, m_h, False) + queries.to(tl.int64) * m_r,
        plane(l, batch, head, l_b, l_h, False) + queries.to(tl.int64) * l_r,
        existing,
    )
    row_offsets = index.to(tl.int64) * T + queries
    cotangent_mean = tl.load(z + row_offsets, mask=existing, other=0.0)
    tangent_mean = tl.load(r + row_offsets, mask=existing, other=0.0)
    mixed = tl.load(z_tangent + row_offsets, mask=existing, other=0.0)
    q_tile = tl.load(
        plane(q, batch, head, q_b, q_h, ALIGNED) + offsets(queries, columns, q_r, q_c, ALIGNED),
        mask=existing[:, None] & score_columns, other=0.0,
    )  # fmt: skip
    tq_tile = tl.load(
        plane(tq, batch, head, tq_b, tq_h, ALIGNED) + offsets(queries, columns, tq_r, tq_c, ALIGNED),
        mask=existing[:, None] & score_columns, other=0.0,
    )  # fmt: skip
    g_tile = tl.load(
        plane(g, batch, head, g_b, g_h, ALIGNED) + offsets(queries, columns, g_r, g_c, ALIGNED),
        mask=existing[:, None] & value_columns, other=0.0,
    )  # fmt: skip
    k_plane = plane(k, batch, head, k_b, k_h, ALIGNED)
    v_plane = plane(v, batch, head, v_b, v_h, ALIGNED)
    tk_plane = plane(tk, batch, head, tk_b, tk_h, ALIGNED)
    tv_plane = plane(tv, batch, head, tv_b, tv_h, ALIGNED)
    k_offsets = offsets(keys, columns, k_r, k_c, ALIGNED)
    v_offsets = offsets(keys, columns, v_r, v_c, ALIGNED)
    tk_offsets = offsets(keys, columns, tk_r, tk_c, ALIGNED)
    tv_offsets = offsets(keys, columns, tv_r, tv_c, ALIGNED)
    k_step, v_step, tk_step, tv_step = k_r.to(tl.int64), v_r.to(tl.int64), tk_r.to(tl.int64), tv_r.to(tl.int64)

    second = tl.zeros([BLOCK_QUERY, WIDTH], ACCUMULATE)
    for start in range(0, tl.max(seen, axis=0), BLOCK_KEY):
        present = (start + keys < M)[:, None]
        visible = (start + keys)[None, :] < seen[:, None]
        k_tile = tl.load(below(k_plane, start, k_step, ALIGNED) + k_offsets, mask=present & score_columns, other=0.0)
        v_tile = tl.load(below(v_plane, start, v_step, ALIGNED) + v_offsets, mask=present & value_columns, other=0.0)
        tk_tile = tl.load(
            below(tk_plane, start, tk_step, ALIGNED) + tk_offsets, mask=present & score_columns, other=0.0
        )
        tv_tile = tl.load(
            below(tv_plane, start, tv_step, ALIGNED) + tv_offsets, mask=present & value_columns, other=0.0
        )
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION, out_dtype=ACCUMULATE) * scale
        p = probabilities(scores, visible, row_max, inverse_sum)
        ts = tl.dot(tq_tile, tl.trans(k_tile), input_precision=PRECISION, out_dtype=ACCUMULATE)
        ts = tl.dot(q_tile, tl.trans(tk_tile), acc=ts, input_precision=PRECISION, out_dtype=ACCUMULATE) * scale
        dp = tl.dot(g_tile, tl.trans(v_tile), input_precision=PRECISION, out_dtype=ACCUMULATE)
        tdp = tl.dot(g_tile, tl.trans(tv_tile), input_precision=PRECISION, out_dtype=ACCUMULATE)
        dp = dp - cotangent_mean[:, None]
        tds = (p * ((ts - tangent_mean[:, None]) * dp + (tdp - mixed[:, None]))).to(k_tile.dtype)
        ds = (p * dp).to(k_tile.dtype)
        second = tl.dot(tds, k_tile, acc=second, input_precision=PRECISION, out_dtype=ACCUMULATE)
        second = tl.dot(ds, tk_tile, acc=second, input_precision=PRECISION, out_dtype=ACCUMULATE)

    tl.store(
        output_plane(hq, index, T, D, ALIGNED) + offsets(queries, columns, D, 1, ALIGNED),
        (second * scale).to(hq.dtype.element_ty), mask=existing[:, None] & score_columns,
    )  # fmt: skip


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
    tiles = tl.cdiv(M, BLOCK_KEY)
    index, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    batch, head = index // H, index % H
    keys = tile * BLOCK_KEY + tl.arange(0, BLOCK_KEY)
    rows = tl.arange(0, BLOCK_QUERY)
    columns = tl.arange(0, WIDTH)
    score_columns = columns_within(columns, D, ALIGNED)
    value_columns = columns_within(columns, DV, ALIGNED)
    present = (keys < M)[:, None]
    k_tile = tl.load(
        plane(k, batch, head, k_b, k_h, ALIGNED) + offsets(keys, columns, k_r, k_c, ALIGNED),
        mask=present & score_columns, other=0.0,
    )  # fmt: skip
    tk_tile = tl.load(
        plane(tk, batch, head, tk_b, tk_h, ALIGNED) + offsets(keys, columns, tk_r, tk_c, ALIGNED),
        mask=present & score_columns, other=0.0,
    )  # fmt: skip
    q_plane = plane(q, batch, head, q_b, q_h, ALIGNED)
    tq_plane = plane(tq, batch, head, tq_b, tq_h, ALIGNED)
    g_plane = plane(g, batch, head, g_b, g_h, ALIGNED)
    m_plane = plane(m, batch, head, m_b, m_h, False)
    l_plane = plane(l, batch, head, l_b, l_h, False)
    q_offsets = offsets(rows, columns, q_r, q_c, ALIGNED)
    tq_offsets = offsets(rows, columns, tq_r, tq_c, ALIGNED)
    g_offsets = offsets(rows, columns, g_r, g_c, ALIGNED)
    q_step, tq_step, g_step = q_r.to(tl.int64), tq_r.to(tl.int64), g_r.to(tl.int64)
    r_plane = r + index.to(tl.int64) * T
    if NEEDS_K:
        v_tile = tl.load(
            plane(v, batch, head, v_b, v_h, ALIGNED) + offsets(keys, columns, v_r, v_c, ALIGNED),
            mask=present & value_columns, other=0.0,
        )  # fmt: skip
        tv_tile = tl.load(
            plane(tv, batch, head, tv_b, tv_h, ALIGNED) + offsets(keys, columns, tv_r, tv_c, ALIGNED),
            mask=present & value_columns, other=0.0,
        )  # fmt: skip
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
        q_tile = tl.load(
            below(q_plane, start, q_step, ALIGNED) + q_offsets, mask=existing[:, None] & score_columns, other=0.0
        )
        tq_tile = tl.load(
            below(tq_plane, start, tq_step, ALIGNED) + tq_offsets, mask=existing[:, None] & score_columns, other=0.0
        )
        g_tile = tl.load(
            below(g_plane, start, g_step, ALIGNED) + g_offsets, mask=existing[:, None] & value_columns, other=0.0
        )
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION, out_dtype=ACCUMULATE) * scale
        p = probabilities(scores, visible, row_max, inverse_sum)
        ts = tl.dot(tq_tile, tl.trans(k_tile), input_precision=PRECISION, out_dtype=ACCUMULATE)
        ts = tl.dot(q_tile, tl.trans(tk_tile), acc=ts, input_precision=PRECISION, out_dtype=ACCUMULATE) * scale
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
        tl.store(
            output_plane(hk, index, M, D, ALIGNED) + offsets(keys, columns, D, 1, ALIGNED),
            (k_second * scale).to(hk.dtype.element_ty), mask=present & score_columns,
        )  # fmt: skip
    if NEEDS_V:
        tl.store(
            output_plane(hv, index, M, DV, ALIGNED) + offsets(keys, columns, DV, 1, ALIGNED),
            v_second.to(hv.dtype.element_ty), mask=present & value_columns,
        )  # fmt: skip


def run(
    problem: Problem,
    primals: Triple,
    g: torch.Tensor,
    tangents: Triple,
    m: torch.Tensor,
    l: torch.Tensor,
    needs: tuple[bool, bool, bool],
) -> Gradients:
    """Return contiguous hq, hk, hv of a checked problem, None where not asked for; hv alone needs no moment but r."""
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
