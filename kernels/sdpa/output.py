"""Forward: O, m and l in one sweep over the keys, with a running maximum."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..splitting import operands
from ..tiles import (
    dot,
    load_operand,
    load_own,
    operand,
    program_rows,
    reciprocal,
    store_tile,
    turned,
    visible_keys,
    walk,
    whole_tiles,
)
from .guardrails import Problem, Triple
from .launch import launch, unspecialised
from .tiles import feature_columns, online


@triton.jit(**unspecialised("q", "k", "v", contiguous=("o", "m", "l")))
def forward_kernel(
    q, k, v,
    o, m, l,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c,
    H, T, M, D, DV, causal_offset, padded, scale, rate,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr,
    ALIGNED: tl.constexpr, ACCUMULATE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Compute o [BLOCK_QUERY, DV], m and l [BLOCK_QUERY] of one tile of queries.

    Rounded to the dtype of q: exp(S - running maximum), as operand of its dot with v, and o. All else is ACCUMULATE.
    """
    index, batch, head, _, queries = program_rows(T, H, BLOCK_QUERY)
    keys = tl.arange(0, BLOCK_KEY)
    columns, score_columns, value_columns = feature_columns(D, DV, WIDTH, ALIGNED)
    existing = queries < T
    seen = visible_keys(queries, T, M, causal_offset)
    k_rows = walk(k, batch, head, keys, columns, k_b, k_h, k_r, k_c, ALIGNED)
    v_rows = walk(v, batch, head, keys, columns, v_b, v_h, v_r, v_c, ALIGNED)
    scored, valued = existing[:, None] & score_columns, existing[:, None] & value_columns
    q_tile = load_own(q, batch, head, queries, columns, scored, q_b, q_h, q_r, q_c, PRECISION, ALIGNED)

    whole, last = whole_tiles(seen, existing, M, BLOCK_KEY), tl.max(seen, axis=0)

    largest = tl.full([BLOCK_QUERY], float("-inf"), ACCUMULATE)
    row_sum = tl.zeros([BLOCK_QUERY], ACCUMULATE)
    output = tl.zeros([BLOCK_QUERY, WIDTH], ACCUMULATE)
    for PARTIAL in tl.static_range(2):  # the tiles that every row sees whole, then the others
        for start in range(whole if PARTIAL else 0, last if PARTIAL else whole, BLOCK_KEY):
            present = (start + keys < M)[:, None] if PARTIAL else True
            k_tile = load_operand(k_rows, start, present & score_columns, PRECISION, ALIGNED)
            v_tile = load_operand(v_rows, start, present & value_columns, PRECISION, ALIGNED)
            products = dot(q_tile, turned(k_tile, PRECISION), PRECISION, ACCUMULATE)
            visible = (start + keys)[None, :] < seen[:, None] if PARTIAL else True
            weights, decay, largest = online(products, visible, largest, scale, rate, EXACT, PARTIAL)
            row_sum = row_sum * decay + tl.sum(weights, axis=1)
            weights = operand(weights, v_rows, PRECISION)
            output = dot(weights, v_tile, PRECISION, ACCUMULATE, acc=output * decay[:, None])

    sees = row_sum != 0.0
    output = output * reciprocal(tl.where(sees, row_sum, 1.0), sees)[:, None]
    if EXACT:
        largest = largest * scale
    row_pointers = index.to(tl.int64) * T + queries
    tl.store(m + row_pointers, largest, mask=existing)
    tl.store(l + row_pointers, row_sum, mask=existing)
    store_tile(o, index, T, DV, queries, columns, output, valued, ALIGNED)


def run(problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Triple:
    """Return o [B, H, T, Dv], m and l [B, H, T] of a checked problem."""
    o = q.new_empty((problem.batch, problem.heads, problem.queries, problem.value_features))
    m = q.new_empty(o.shape[:3], dtype=problem.statistics_dtype)
    l = torch.empty_like(m)
    planes = operands(problem.precision, q, k, v)
    launch(forward_kernel, problem, planes=planes, contiguous=(o, m, l), over="query", part="forward")
    return o, m, l
