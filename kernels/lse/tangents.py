"""JVP: the tangent of L along (q', k', sinks'), L' = rowsum(P * (1 - tanh^2) * S') + e^(sink - L) sink'."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tiles import (
    columns_within,
    load_operand,
    load_own,
    program_rows,
    row_factors,
    visible_keys,
    walk,
    whole_tiles,
)
from .guardrails import Problem
from .launch import Tensors, in_parts, launch, unspecialised
from .tiles import LOG2E, capped_scores, moved_scores, same_segment, segment_ids, sink_of, weighed


@triton.jit
def _moved(
    q_tile, k_tile, tq_tile, tk_tile, shift, inverse, allowed, scale, softcap, rate,
    PRECISION: tl.constexpr, EXACT: tl.constexpr, PLAIN: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Return what one tile of keys adds to the tangent [queries]."""
    scores, slope = capped_scores(q_tile, k_tile, scale, softcap, PRECISION, EXACT, PLAIN)
    moved, _ = moved_scores(q_tile, k_tile, tq_tile, tk_tile, scores, slope, scale, softcap, PRECISION, PLAIN)
    return tl.sum(weighed(scores, shift[:, None], inverse[:, None], allowed, rate, PARTIAL) * moved, axis=1)


@triton.jit(**unspecialised("m", "l", "tangent"))
def tangent_kernel(
    q, k, g, sinks, q_ids, kv_ids, tq, tk, tsinks,
    m, l, tangent,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, g_b, g_h, g_r, sinks_h, q_ids_b, q_ids_r, kv_ids_b, kv_ids_r,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tsinks_h,
    H, G, T, M, D, causal_offset, padded, has_sinks, has_segments, scale, softcap, rate,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
    PLAIN: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the tangent [BLOCK_QUERY] of one tile of queries; all is float32, and nothing is rounded."""
    index, batch, head, _, queries = program_rows(T, H, BLOCK_QUERY)
    keys = tl.arange(0, BLOCK_KEY)
    columns = tl.arange(0, WIDTH)
    within = columns_within(columns, D, ALIGNED)
    existing = queries < T
    seen = visible_keys(queries, T, M, causal_offset)
    rows = index.to(tl.int64) * T + queries
    whole, last = whole_tiles(seen, existing, M, BLOCK_KEY) if PLAIN else 0, tl.max(seen, axis=0)
    row_shift, row_inverse = row_factors(m + rows, l + rows, existing, scale, EXACT)
    own = existing[:, None] & within
    q_tile = load_own(q, batch, head, queries, columns, own, q_b, q_h, q_r, q_c, PRECISION, ALIGNED)
    tq_tile = load_own(tq, batch, head, queries, columns, own, tq_b, tq_h, tq_r, tq_c, PRECISION, ALIGNED)
    k_rows = walk(k, batch, head // (H // G), keys, columns, k_b, k_h, k_r, k_c, ALIGNED)
    tk_rows = walk(tk, batch, head // (H // G), keys, columns, tk_b, tk_h, tk_r, tk_c, ALIGNED)
    if not PLAIN:
        own_ids = segment_ids(q_ids, batch, queries, T, q_ids_b, q_ids_r, has_segments)

    sink = sink_of(sinks, head, sinks_h, has_sinks)
    step = sink_of(tsinks, head, tsinks_h, has_sinks)
    row_max = row_shift * scale if EXACT else row_shift
    total = tl.where(sink == float("-inf"), 0.0, tl.exp2((sink - row_max) * LOG2E) * row_inverse * step)
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
                tk_tile = load_operand(tk_rows, start, there, PRECISION, ALIGNED)
                total += _moved(
                    q_tile, k_tile, tq_tile, tk_tile, row_shift, row_inverse, allowed, scale, softcap, rate,
                    PRECISION, EXACT, PLAIN, PARTIAL,
                )  # fmt: skip

    tl.store(tangent + rows, total, mask=existing)


def run(problem: Problem, tensors: Tensors, m: torch.Tensor, l: torch.Tensor) -> torch.Tensor:
    """Return the tangent of L, [B, H, T] in float32, of a checked problem with tangents of all its inputs."""
    tangent = torch.empty_like(m)
    tensors = in_parts(problem, tensors._replace(g=None), "jvp")
    launch(tangent_kernel, problem, tensors, m, l, tangent, step="jvp")
    return tangent
