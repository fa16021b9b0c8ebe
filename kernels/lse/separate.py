"""VJP by two kernels: dQ over tiles of queries, dK over tiles of keys; no atomics, so every run gives the same bits."""

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
from .guardrails import Problem
from .launch import Tensors, launch, unspecialised
from .tiles import capped, overlap, segment_ids


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
    tiles = tl.cdiv(T, BLOCK_QUERY)
    index, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    batch, head = index // H, index % H
    queries = tile * BLOCK_QUERY + tl.arange(0, BLOCK_QUERY)
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
    q_tile = tl.load(
        plane(q, batch, head, q_b, q_h, ALIGNED) + offsets(queries, columns, q_r, q_c, ALIGNED),
        mask=existing[:, None] & within, other=0.0,
    )  # fmt: skip
    k_plane = plane(k, batch, head // (H // G), k_b, k_h, ALIGNED)
    k_offsets = offsets(keys, columns, k_r, k_c, ALIGNED)
    k_step = k_r.to(tl.int64)
    if not PLAIN:
        own_ids = segment_ids(q_ids, batch, queries, T, q_ids_b, q_ids_r, has_segments)

    gradient = tl.zeros([BLOCK_QUERY, WIDTH], tl.float32)
    for start in range(0, tl.max(seen, axis=0), BLOCK_KEY):
        present = start + keys < M
        allowed = (start + keys)[None, :] < seen[:, None]
        if not PLAIN:
            key_ids = segment_ids(kv_ids, batch, start + keys, M, kv_ids_b, kv_ids_r, has_segments)
            allowed = allowed & (own_ids[:, None] == key_ids[None, :])
            needed = overlap(own_ids, existing, key_ids, present)
        else:
            needed: tl.constexpr = True
        if needed:
            k_tile = tl.load(
                below(k_plane, start, k_step, ALIGNED) + k_offsets, mask=present[:, None] & within, other=0.0
            )
            ds = score_gradient(q_tile, k_tile, allowed, cotangent, row_max, inverse_sum, scale, softcap, PLAIN)
            gradient = tl.dot(ds.to(k_tile.dtype), k_tile, acc=gradient, input_precision="ieee")

    tl.store(
        output_plane(dq, index, T, D, ALIGNED) + offsets(queries, columns, D, 1, ALIGNED),
        (gradient * scale).to(dq.dtype.element_ty), mask=existing[:, None] & within,
    )  # fmt: skip


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
    tiles = tl.cdiv(M, BLOCK_KEY)
    index, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    batch, group, shared = index // G, index % G, H // G
    keys = tile * BLOCK_KEY + tl.arange(0, BLOCK_KEY)
    rows = tl.arange(0, BLOCK_QUERY)
    columns = tl.arange(0, WIDTH)
    within = columns_within(columns, D, ALIGNED)
    present = keys < M
    k_tile = tl.load(
        plane(k, batch, group, k_b, k_h, ALIGNED) + offsets(keys, columns, k_r, k_c, ALIGNED),
        mask=present[:, None] & within, other=0.0,
    )  # fmt: skip
    q_offsets = offsets(rows, columns, q_r, q_c, ALIGNED)
    q_step = q_r.to(tl.int64)
    if not PLAIN:
        own_ids = segment_ids(kv_ids, batch, keys, M, kv_ids_b, kv_ids_r, has_segments)

    gradient = tl.zeros([BLOCK_KEY, WIDTH], tl.float32)
    for member in range(0, shared):
        head = group * shared + member
        q_plane = plane(q, batch, head, q_b, q_h, ALIGNED)
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
                allowed = allowed & (query_ids[:, None] == own_ids[None, :])
                needed = overlap(query_ids, existing, own_ids, present)
            else:
                needed: tl.constexpr = True
            if needed:
                q_tile = tl.load(
                    below(q_plane, start, q_step, ALIGNED) + q_offsets, mask=existing[:, None] & within, other=0.0
                )
                ds = score_gradient(q_tile, k_tile, allowed, cotangent, row_max, inverse_sum, scale, softcap, PLAIN)
                gradient = tl.dot(tl.trans(ds.to(q_tile.dtype)), q_tile, acc=gradient, input_precision="ieee")

    tl.store(
        output_plane(dk, index, M, D, ALIGNED) + offsets(keys, columns, D, 1, ALIGNED),
        (gradient * scale).to(dk.dtype.element_ty), mask=present[:, None] & within,
    )  # fmt: skip


def run(
    problem: Problem, tensors: Tensors, m: torch.Tensor, l: torch.Tensor, needs: tuple[bool, bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return contiguous dq and dk of a checked problem, None where not asked for."""
    dq, dk = (
        torch.empty(primal.shape, dtype=primal.dtype, device=primal.device) if need else None
        for primal, need in zip((tensors.q, tensors.k), needs, strict=True)
    )
    if needs[0]:
        launch(query_kernel, problem, tensors, m, l, dq, step="dq")
    if needs[1]:
        launch(key_kernel, problem, tensors, m, l, dk, step="dkv")
    return dq, dk
