"""JVP: the tangent of O along (q', k', v'), true (centred) or with m and l strictly frozen."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tiles import below, columns_within, offsets, output_plane, plane, probabilities, statistics, visible_keys
from . import moments
from .guardrails import Problem, Triple
from .launch import launch, unspecialised


@triton.jit(**unspecialised("q", "k", "v", "tq", "tk", "tv", rows=("m", "l"), contiguous=("r", "o", "to")))
def tangent_kernel(
    q, k, v, tq, tk, tv, m, l,
    r, o, to,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tv_b, tv_h, tv_r, tv_c,
    m_b, m_h, m_r, l_b, l_h, l_r,
    H, T, M, D, DV, causal_offset, scale,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr,
    ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr, PRECISION: tl.constexpr,
    CENTRED: tl.constexpr, PRIMAL: tl.constexpr,
):  # fmt: skip
    """Compute the tangent of o [BLOCK_QUERY, DV] of one tile of queries: P' V + P v', and with PRIMAL o = P V.

    P' = P * (S' - r) with CENTRED, P * S' without. Rounded to the dtype of q: P' and P, as operands of those dots, and
    both outputs. All else is ACCUMULATE.
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
    q_tile = tl.load(
        plane(q, batch, head, q_b, q_h, ALIGNED) + offsets(queries, columns, q_r, q_c, ALIGNED),
        mask=existing[:, None] & score_columns, other=0.0,
    )  # fmt: skip
    tq_tile = tl.load(
        plane(tq, batch, head, tq_b, tq_h, ALIGNED) + offsets(queries, columns, tq_r, tq_c, ALIGNED),
        mask=existing[:, None] & score_columns, other=0.0,
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
    if CENTRED:
        mean = tl.load(r + index.to(tl.int64) * T + queries, mask=existing, other=0.0)

    tangent = tl.zeros([BLOCK_QUERY, WIDTH], ACCUMULATE)
    output = tl.zeros([BLOCK_QUERY, WIDTH], ACCUMULATE)
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
        if CENTRED:
            ts = ts - mean[:, None]
        tp = (p * ts).to(v_tile.dtype)
        weights = p.to(v_tile.dtype)
        tangent = tl.dot(tp, v_tile, acc=tangent, input_precision=PRECISION, out_dtype=ACCUMULATE)
        tangent = tl.dot(weights, tv_tile, acc=tangent, input_precision=PRECISION, out_dtype=ACCUMULATE)
        if PRIMAL:
            output = tl.dot(weights, v_tile, acc=output, input_precision=PRECISION, out_dtype=ACCUMULATE)

    o_offsets = offsets(queries, columns, DV, 1, ALIGNED)
    o_mask = existing[:, None] & value_columns
    tl.store(output_plane(to, index, T, DV, ALIGNED) + o_offsets, tangent.to(to.dtype.element_ty), mask=o_mask)
    if PRIMAL:
        tl.store(output_plane(o, index, T, DV, ALIGNED) + o_offsets, output.to(o.dtype.element_ty), mask=o_mask)


def run(
    problem: Problem,
    primals: Triple,
    tangents: Triple,
    m: torch.Tensor,
    l: torch.Tensor,
    *,
    centred: bool,
    primal: bool,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return o (None unless `primal`) and its tangent, each [B, H, T, Dv], with P rebuilt from m and l."""
    to = primals[0].new_empty((problem.batch, problem.heads, problem.queries, problem.value_features))
    o = torch.empty_like(to) if primal else None
    r = moments.run(problem, primals, m, l, tangents=tangents)[1] if centred else None
    launch(
        tangent_kernel,
        problem,
        planes=(*primals, *tangents),
        rows=(m, l),
        contiguous=(r, o, to),
        over="query",
        derivative=1,
        CENTRED=centred,
        PRIMAL=primal,
    )
    return o, to
