"""JVP: the tangent of O along (q', k', v'), true (centred) or with m and l strictly frozen.

The centre r = rowsum(P * S') takes a sweep of its own in 16 bit. Where operands of dots keep the accumulator's
precision it is the mean of what has been seen so far: when it moves by d, what was summed about it moves by -d P V.
With rounded operands that would not cancel, since P and P * S' are rounded apart. Then m and l, if nobody has them, are
found in the same sweep, as forward finds them.
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
    reciprocal,
    store_tile,
    turned,
    visible_keys,
    walk,
    whole_tiles,
)
from . import moments
from .guardrails import Problem, Triple
from .launch import launch, unspecialised
from .tiles import feature_columns, mean_of, online, rebuilt, score_tangent


@triton.jit(**unspecialised("q", "k", "v", "tq", "tk", "tv", contiguous=("shift", "inverse", "r", "o", "to")))
def tangent_kernel(
    q, k, v, tq, tk, tv,
    shift, inverse, r, o, to,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tv_b, tv_h, tv_r, tv_c,
    H, T, M, D, DV, causal_offset, padded, scale, rate,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr,
    ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    CENTRED: tl.constexpr, MOVING: tl.constexpr, ONLINE: tl.constexpr, PRIMAL: tl.constexpr,
):  # fmt: skip
    """Compute the tangent of o [BLOCK_QUERY, DV] of one tile of queries: P' V + P v', and with PRIMAL o = P V.

    P' = P * (S' - r) with CENTRED, P * S' without. With MOVING r is not given but found on the way, and with ONLINE m
    and l are too. Rounded to the dtype of q: P' and P, as operands of those dots, and both outputs. All else is
    ACCUMULATE.
    """
    index, batch, head, _, queries = program_rows(T, H, BLOCK_QUERY)
    keys = tl.arange(0, BLOCK_KEY)
    columns, score_columns, value_columns = feature_columns(D, DV, WIDTH, ALIGNED)
    existing = queries < T
    seen = visible_keys(queries, T, M, causal_offset)
    whole, last = whole_tiles(seen, existing, M, BLOCK_KEY), tl.max(seen, axis=0)
    if not ONLINE:
        row_shift, row_inverse = load_factors(shift, inverse, index, padded, queries)
    scored, valued = existing[:, None] & score_columns, existing[:, None] & value_columns
    q_tile = load_own(q, batch, head, queries, columns, scored, q_b, q_h, q_r, q_c, PRECISION, ALIGNED)
    tq_tile = load_own(tq, batch, head, queries, columns, scored, tq_b, tq_h, tq_r, tq_c, PRECISION, ALIGNED)
    k_rows = walk(k, batch, head, keys, columns, k_b, k_h, k_r, k_c, ALIGNED)
    v_rows = walk(v, batch, head, keys, columns, v_b, v_h, v_r, v_c, ALIGNED)
    tk_rows = walk(tk, batch, head, keys, columns, tk_b, tk_h, tk_r, tk_c, ALIGNED)
    tv_rows = walk(tv, batch, head, keys, columns, tv_b, tv_h, tv_r, tv_c, ALIGNED)
    mean = tl.zeros([BLOCK_QUERY], ACCUMULATE)
    if CENTRED and not MOVING:
        mean = tl.load(r + padded_places(index, padded, queries))

    largest = tl.full([BLOCK_QUERY], float("-inf"), ACCUMULATE)
    weight = tl.zeros([BLOCK_QUERY], ACCUMULATE)
    total = tl.zeros([BLOCK_QUERY], ACCUMULATE)
    tangent = tl.zeros([BLOCK_QUERY, WIDTH], ACCUMULATE)
    output = tl.zeros([BLOCK_QUERY, WIDTH], ACCUMULATE)
    for PARTIAL in tl.static_range(2):  # the tiles that every row sees whole, then the others
        for start in range(whole if PARTIAL else 0, last if PARTIAL else whole, BLOCK_KEY):
            present = (start + keys < M)[:, None] if PARTIAL else True
            visible = (start + keys)[None, :] < seen[:, None] if PARTIAL else True
            k_tile = load_operand(k_rows, start, present & score_columns, PRECISION, ALIGNED)
            v_tile = load_operand(v_rows, start, present & value_columns, PRECISION, ALIGNED)
            tk_tile = load_operand(tk_rows, start, present & score_columns, PRECISION, ALIGNED)
            tv_tile = load_operand(tv_rows, start, present & value_columns, PRECISION, ALIGNED)
            if ONLINE:
                products = dot(q_tile, turned(k_tile, PRECISION), PRECISION, ACCUMULATE)
                p, decay, largest = online(products, visible, largest, scale, rate, EXACT, PARTIAL)
                weight, total = weight * decay, total * decay
                tangent, output = tangent * decay[:, None], output * decay[:, None]
            else:
                p = rebuilt(
                    q_tile, k_tile, row_shift[:, None], row_inverse[:, None], visible,
                    scale, rate, PRECISION, ACCUMULATE, EXACT, PARTIAL,
                )  # fmt: skip
            ts = score_tangent(q_tile, k_tile, tq_tile, tk_tile, scale, PRECISION, ACCUMULATE)
            if MOVING:
                former = mean
                weight += tl.sum(p, axis=1)
                total += tl.sum(p * ts, axis=1)
                mean = mean_of(total, weight)
                tangent -= (mean - former)[:, None] * output
            if CENTRED:
                ts = ts - mean[:, None]
            tp = operand(p * ts, v_rows, PRECISION)
            weights = operand(p, v_rows, PRECISION)
            tangent = dot(tp, v_tile, PRECISION, ACCUMULATE, acc=tangent)
            if PRIMAL or MOVING:  # before v' is taken: the parts of v are no longer needed then
                output = dot(weights, v_tile, PRECISION, ACCUMULATE, acc=output)
            tangent = dot(weights, tv_tile, PRECISION, ACCUMULATE, acc=tangent)

    if ONLINE:
        sees = weight != 0.0
        row_inverse = reciprocal(tl.where(sees, weight, 1.0), sees)
        tangent, output = tangent * row_inverse[:, None], output * row_inverse[:, None]
    elif MOVING:  # P of m and l that are stale does not sum to 1: r is a sum, not a mean
        tangent -= (total - mean)[:, None] * output
    store_tile(to, index, T, DV, queries, columns, tangent, valued, ALIGNED)
    if PRIMAL:
        store_tile(o, index, T, DV, queries, columns, output, valued, ALIGNED)


def in_one_sweep(dtype: torch.dtype, precision: str, width: int) -> bool:
    """Return whether statistics are found in the sweep that needs them: operands are as precise as the accumulator.

    bf16x6 has no registers for that at a width of 128: 9.1 ms in place of 8.5 (H100, B4 H16 N2048).
    """
    fits = precision == "ieee" or (precision == "bf16x6" and width < 128)
    return dtype in (torch.float32, torch.float64) and fits


def run(
    problem: Problem,
    primals: Triple,
    tangents: Triple,
    m: torch.Tensor | None,
    l: torch.Tensor | None,
    *,
    centred: bool,
    primal: bool,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return o (None unless `primal`) and its tangent, each [B, H, T, Dv], with P rebuilt from m and l.

    Without m and l, which only a centred tangent may be, they are found by the first sweep; sums of P before its
    division by l are finite where those of P are, up to a factor l.
    """
    to = primals[0].new_empty((problem.batch, problem.heads, problem.queries, problem.value_features))
    o = torch.empty_like(to) if primal else None
    moving = centred and in_one_sweep(problem.dtype, problem.precision, problem.width)
    rows = moments.Moments(None, None, None, None, None)
    if m is not None or not moving:
        rows = moments.run(problem, primals, m, l, tangents=tangents if centred and not moving else None)
    launch(
        tangent_kernel,
        problem,
        planes=(*primals, *tangents),
        contiguous=(rows.shift, rows.inverse, rows.r, o, to),
        over="query",
        part="jvp",
        CENTRED=centred,
        MOVING=moving,
        ONLINE=m is None and moving,
        PRIMAL=primal,
    )
    return o, to
