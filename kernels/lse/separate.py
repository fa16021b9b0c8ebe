"""VJP by two kernels: dQ over tiles of queries, dK over tiles of keys; no atomics, so every run gives the same bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tiles import columns_within, first_query, probabilities, statistics, visible_keys
from .guardrails import Problem
from .launch import Tensors, launch, unspecialised
from .tiles import capped, load_step, load_tile, program_rows, same_segment, segment_ids, store_tile, walk


@triton.jit
def score_gradient(
    q_tile, k_tile, allowed, cotangent, row_max, inverse_sum, scale, softcap,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """Return dS = g P (1 - tanh^2) [queries, keys] in float32, exactly 0 where a query does not see a key."""
    scores, slope = capped(tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale, softcap, PLAIN)
    p = probabilities(scores, allowed, row_max, inverse_sum)
    return cotangent[:, None] * p * slope


@triton.jit(**unspecialised("m", "l", "dq"))
def query_kernel(
    q, k, g, sinks, q_ids, kv_ids, tq, tk, tsinks,
    m, l, dq,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, g_b, g_h, g_r, sinks_h, q_ids_b, q_ids_r, kv_ids_b, kv_ids_r,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tsinks_h,
    H, G, T, M, D, causal_offset, has_sinks, has_segments, scale, softcap,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """Compute dq [BLOCK_QUERY, D] = scale dS K of one tile of queries.

    Rounded to the dtype of q: dS, as operand of its dot with k, and dq, after the scale. All else is float32.
    """
    index, batch, head, _, queries = program_rows(T, H, BLOCK_QUERY)
    keys = tl.arange(0, BLOCK_KEY)
    columns = tl.arange(0, WIDTH)
    within = columns_within(columns, D, ALIGNED)
    existing = queries < T
    seen = visible_keys(queries, T, M, causal_offset)
    rows = index.to(tl.int64) * T + queries
    row_max, inverse_sum = statistics(m + rows, l + rows, existing)
    cotangent = tl.load(
        g + batch.to(tl.int64) * g_b + head.to(tl.int64) * g_h + queries.to(tl.int64) * g_r, mask=existing, other=0.0
    )
    q_tile = load_tile(q, batch, head, queries, columns, existing[:, None] & within, q_b, q_h, q_r, q_c, ALIGNED)
    k_rows = walk(k, batch, head // (H // G), keys, columns, k_b, k_h, k_r, k_c, ALIGNED)
    if not PLAIN:
        own_ids = segment_ids(q_ids, batch, queries, T, q_ids_b, q_ids_r, has_segments)

    gradient = tl.zeros([BLOCK_QUERY, WIDTH], tl.float32)
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
            ds = score_gradient(q_tile, k_tile, allowed, cotangent, row_max, inverse_sum, scale, softcap, PLAIN)
            gradient = tl.dot(ds.to(k_tile.dtype), k_tile, acc=gradient, input_precision="ieee")

    store_tile(dq, index, T, D, queries, columns, gradient * scale, existing[:, None] & within, ALIGNED)


@triton.jit(**unspecialised("m", "l", "dk"))
def key_kernel(
    q, k, g, sinks, q_ids, kv_ids, tq, tk, tsinks,
    m, l, dk,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, g_b, g_h, g_r, sinks_h, q_ids_b, q_ids_r, kv_ids_b, kv_ids_r,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tsinks_h,
    H, G, T, M, D, causal_offset, has_sinks, has_segments, scale, softcap,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """Compute dk [BLOCK_KEY, D] = scale dS^T Q of one tile of keys, summed over the query heads of its group.

    Rounded to the dtype of q: dS, as operand of its dot with q, and dk, after the scale. All else is float32.
    """
    index, batch, group, tile, keys = program_rows(M, G, BLOCK_KEY)
    shared = H // G
    rows = tl.arange(0, BLOCK_QUERY)
    columns = tl.arange(0, WIDTH)
    within = columns_within(columns, D, ALIGNED)
    present = keys < M
    k_tile = load_tile(k, batch, group, keys, columns, present[:, None] & within, k_b, k_h, k_r, k_c, ALIGNED)
    if not PLAIN:
        own_ids = segment_ids(kv_ids, batch, keys, M, kv_ids_b, kv_ids_r, has_segments)

    gradient = tl.zeros([BLOCK_KEY, WIDTH], tl.float32)
    for member in range(0, shared):
        head = group * shared + member
        q_rows = walk(q, batch, head, rows, columns, q_b, q_h, q_r, q_c, ALIGNED)
        g_plane = g + batch.to(tl.int64) * g_b + head.to(tl.int64) * g_h
        statistics_at = (batch * H + head).to(tl.int64) * T
        for start in range(first_query(tile * BLOCK_KEY, causal_offset, BLOCK_QUERY), T, BLOCK_QUERY):
            queries = start + rows
            existing = queries < T
            allowed = keys[None, :] < visible_keys(queries, T, M, causal_offset)[:, None]
            row_max, inverse_sum = statistics(m + statistics_at + queries, l + statistics_at + queries, existing)
            cotangent = tl.load(g_plane + queries.to(tl.int64) * g_r, mask=existing, other=0.0)
            if not PLAIN:
                query_ids = segment_ids(q_ids, batch, queries, T, q_ids_b, q_ids_r, has_segments)
                allowed, needed = same_segment(allowed, query_ids, existing, own_ids, present)
            else:
                needed: tl.constexpr = True
            if needed:
                q_tile = load_step(q_rows, start, existing[:, None] & within, ALIGNED)
                ds = score_gradient(q_tile, k_tile, allowed, cotangent, row_max, inverse_sum, scale, softcap, PLAIN)
                gradient = tl.dot(tl.trans(ds.to(q_tile.dtype)), q_tile, acc=gradient, input_precision="ieee")

    store_tile(dk, index, M, D, keys, columns, gradient * scale, present[:, None] & within, ALIGNED)


def run(
    problem: Problem, tensors: Tensors, m: torch.Tensor, l: torch.Tensor, needs: tuple[bool, bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return contiguous dq and dk of a checked problem, None where not needed."""
    dq, dk = (
        torch.empty(primal.shape, dtype=primal.dtype, device=primal.device) if need else None
        for primal, need in zip((tensors.q, tensors.k), needs, strict=True)
    )
    if needs[0]:
        launch(query_kernel, problem, tensors, m, l, dq, step="dq")
    if needs[1]:
        launch(key_kernel, problem, tensors, m, l, dk, step="dkv")
    return dq, dk
