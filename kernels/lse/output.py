"""Forward: L, m and l in one sweep over the keys, with a running maximum; the sink is one more term, at the end."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tiles import (
    columns_within,
    load_operand,
    load_own,
    program_rows,
    visible_keys,
    walk,
    whole_tiles,
)
from .guardrails import Problem
from .launch import Tensors, in_parts, launch, unspecialised
from .tiles import LOG2E, capped_scores, same_segment, segment_ids, sink_of


@triton.jit
def _further(
    q_tile, k_tile, allowed, scale, softcap, rate, row_max, row_sum,
    PRECISION: tl.constexpr, EXACT: tl.constexpr, PLAIN: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Return the running maximum, in the units of scores, and sum [queries] with one more tile of keys."""
    scores, _ = capped_scores(q_tile, k_tile, scale, softcap, PRECISION, EXACT, PLAIN)
    if PARTIAL:
        scores = tl.where(allowed, scores, float("-inf"))
    larger = tl.maximum(row_max, tl.max(scores, axis=1))
    # a row that has seen no key yet has larger = -inf: subtract 0 there, and not -inf from -inf
    shift = tl.where(larger == float("-inf"), 0.0, larger)
    # exp2 is exp without its care for results below 1e-38, which a sum of at least 1 does not hold
    terms = tl.exp2((scores - shift[:, None]) * rate)
    return larger, row_sum * tl.exp2((row_max - shift) * rate) + tl.sum(terms, axis=1)


@triton.jit(**unspecialised("lse", "m", "l"))
def forward_kernel(
    q, k, g, sinks, q_ids, kv_ids, tq, tk, tsinks,
    lse, m, l,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, g_b, g_h, g_r, sinks_h, q_ids_b, q_ids_r, kv_ids_b, kv_ids_r,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tsinks_h,
    H, G, T, M, D, causal_offset, padded, has_sinks, has_segments, scale, softcap, rate,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
    PLAIN: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute L = m + log(l), m and l [BLOCK_QUERY] of one tile of queries; all is float32, and nothing is rounded."""
    index, batch, head, _, queries = program_rows(T, H, BLOCK_QUERY)
    keys = tl.arange(0, BLOCK_KEY)
    columns = tl.arange(0, WIDTH)
    within = columns_within(columns, D, ALIGNED)
    existing = queries < T
    seen = visible_keys(queries, T, M, causal_offset)
    last = tl.max(seen, axis=0)
    k_rows = walk(k, batch, head // (H // G), keys, columns, k_b, k_h, k_r, k_c, ALIGNED)
    q_tile = load_own(
        q, batch, head, queries, columns, existing[:, None] & within, q_b, q_h, q_r, q_c, PRECISION, ALIGNED
    )
    row_max = tl.full([BLOCK_QUERY], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_QUERY], tl.float32)
    if not PLAIN:
        own_ids = segment_ids(q_ids, batch, queries, T, q_ids_b, q_ids_r, has_segments)
    whole = whole_tiles(seen, existing, M, BLOCK_KEY) if PLAIN else 0
    for PARTIAL in tl.static_range(0 if PLAIN else 1, 2):  # the tiles that every row sees whole, then the others
        for start in range(whole if PARTIAL else 0, last if PARTIAL else whole, BLOCK_KEY):
            present = start + keys < M
            allowed = (start + keys)[None, :] < seen[:, None] if PARTIAL else True
            if not PLAIN:
                key_ids = segment_ids(kv_ids, batch, start + keys, M, kv_ids_b, kv_ids_r, has_segments)
                allowed, needed = same_segment(allowed, own_ids, existing, key_ids, present)
            else:
                needed: tl.constexpr = True
            if needed:
                there = present[:, None] & within if PARTIAL else within
                k_tile = load_operand(k_rows, start, there, PRECISION, ALIGNED)
                row_max, row_sum = _further(
                    q_tile, k_tile, allowed, scale, softcap, rate, row_max, row_sum, PRECISION, EXACT, PLAIN, PARTIAL
                )

    if EXACT:
        row_max = row_max * scale
    sink = sink_of(sinks, head, sinks_h, has_sinks)
    largest = tl.maximum(row_max, sink)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    row_sum = row_sum * tl.exp2((row_max - shift) * LOG2E) + tl.exp2((sink - shift) * LOG2E)
    rows = index.to(tl.int64) * T + queries
    tl.store(lse + rows, largest + tl.log(row_sum), mask=existing)
    tl.store(m + rows, largest, mask=existing)
    tl.store(l + rows, row_sum, mask=existing)


def run(problem: Problem, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return L, m and l, each [B, H, T] in float32 and natural units, of a checked problem."""
    lse = tensors.q.new_empty((problem.batch, problem.heads, problem.queries), dtype=torch.float32)
    m, l = torch.empty_like(lse), torch.empty_like(lse)
    launch(forward_kernel, problem, in_parts(problem, tensors, "forward"), lse, m, l, step="forward")
    return lse, m, l
