"""Forward: L, m and l in one sweep over the keys, with a running maximum that starts at the sink."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tiles import columns_within, visible_keys
from .guardrails import Problem
from .launch import Tensors, launch, unspecialised
from .tiles import LOG2E, capped, load_step, load_tile, program_rows, same_segment, segment_ids, sink_of, walk


@triton.jit
def _further(
    q_tile, k_tile, allowed, scale, softcap, row_max, row_sum,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """Return the running maximum and sum [queries] with one more tile of keys."""
    scores, _ = capped(tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale, softcap, PLAIN)
    scores = tl.where(allowed, scores, float("-inf"))
    larger = tl.maximum(row_max, tl.max(scores, axis=1))
    # a row that has seen no key yet has larger = -inf: subtract 0 there, and not -inf from -inf
    shift = tl.where(larger == float("-inf"), 0.0, larger)
    # exp2 is exp without its care for results below 1e-38, which a sum of at least 1 does not hold
    terms = tl.exp2((scores - shift[:, None]) * LOG2E)
    return larger, row_sum * tl.exp(row_max - shift) + tl.sum(terms, axis=1)


@triton.jit(**unspecialised("lse", "m", "l"))
def forward_kernel(
    q, k, g, sinks, q_ids, kv_ids, tq, tk, tsinks,
    lse, m, l,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, g_b, g_h, g_r, sinks_h, q_ids_b, q_ids_r, kv_ids_b, kv_ids_r,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tsinks_h,
    H, G, T, M, D, causal_offset, has_sinks, has_segments, scale, softcap,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """Compute L = m + log(l), m and l [BLOCK_QUERY] of one tile of queries; all is float32, and nothing is rounded."""
    index, batch, head, _, queries = program_rows(T, H, BLOCK_QUERY)
    keys = tl.arange(0, BLOCK_KEY)
    columns = tl.arange(0, WIDTH)
    within = columns_within(columns, D, ALIGNED)
    existing = queries < T
    seen = visible_keys(queries, T, M, causal_offset)
    k_rows = walk(k, batch, head // (H // G), keys, columns, k_b, k_h, k_r, k_c, ALIGNED)
    q_tile = load_tile(q, batch, head, queries, columns, existing[:, None] & within, q_b, q_h, q_r, q_c, ALIGNED)
    row_max = tl.zeros([BLOCK_QUERY], tl.float32) + sink_of(sinks, head, sinks_h, has_sinks)
    row_sum = tl.where(row_max == float("-inf"), 0.0, 1.0)
    if not PLAIN:
        own_ids = segment_ids(q_ids, batch, queries, T, q_ids_b, q_ids_r, has_segments)
    for start in range(0, tl.max(seen, axis=0), BLOCK_KEY):
        present = start + keys < M
        allowed = (start + keys)[None, :] < seen[:, None]
        if not PLAIN:
            key_ids = segment_ids(kv_ids, batch, start + keys, M, kv_ids_b, kv_ids_r, has_segments)
            allowed, needed = same_segment(allowed, own_ids, existing, key_ids, present)
        else:
            needed: tl.constexpr = True
        if needed:
            k_tile = load_step(k_rows, start, present[:, None] & within, ALIGNED)
            row_max, row_sum = _further(q_tile, k_tile, allowed, scale, softcap, row_max, row_sum, PLAIN)

    rows = index.to(tl.int64) * T + queries
    tl.store(lse + rows, row_max + tl.log(row_sum), mask=existing)
    tl.store(m + rows, row_max, mask=existing)
    tl.store(l + rows, row_sum, mask=existing)


def run(problem: Problem, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return L, m and l, each [B, H, T] in float32 and natural units, of a checked problem."""
    lse = tensors.q.new_empty((problem.batch, problem.heads, problem.queries), dtype=torch.float32)
    m, l = torch.empty_like(lse), torch.empty_like(lse)
    launch(forward_kernel, problem, tensors, lse, m, l, step="forward")
    return lse, m, l
