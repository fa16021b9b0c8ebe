"""JVP: the tangent of L along (q', k', sinks'), L' = rowsum(P * (1 - tanh^2) * S') + e^(sink - L) sink'."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tiles import below, columns_within, offsets, plane, probabilities, statistics, visible_keys
from .guardrails import Problem
from .launch import Tensors, launch, unspecialised
from .tiles import capped, capped_tangent, overlap, segment_ids, sink_of


@triton.jit
def _moved(
    q_tile, k_tile, tq_tile, tk_tile, allowed, row_max, inverse_sum, scale, softcap,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """Return what one tile of keys adds to the tangent [queries]."""
    scores, slope = capped(tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale, softcap, PLAIN)
    ts = tl.dot(tq_tile, tl.trans(k_tile), input_precision="ieee")
    ts = tl.dot(q_tile, tl.trans(tk_tile), acc=ts, input_precision="ieee") * scale
    moved, _ = capped_tangent(scores, slope, ts, softcap, PLAIN)
    return tl.sum(probabilities(scores, allowed, row_max, inverse_sum) * moved, axis=1)


@triton.jit(**unspecialised("m", "l", "tangent"))
def tangent_kernel(
    q, k, g, sinks, q_ids, kv_ids, tq, tk, tsinks,
    m, l, tangent,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, g_b, g_h, g_r, sinks_h, q_ids_b, q_ids_r, kv_ids_b, kv_ids_r,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tsinks_h,
    H, G, T, M, D, causal_offset, has_sinks, has_segments, scale, softcap,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """Compute the tangent [BLOCK_QUERY] of one tile of queries; all is float32, and nothing is rounded."""
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
    own = existing[:, None] & within
    q_tile = tl.load(
        plane(q, batch, head, q_b, q_h, ALIGNED) + offsets(queries, columns, q_r, q_c, ALIGNED), mask=own, other=0.0
    )
    tq_tile = tl.load(
        plane(tq, batch, head, tq_b, tq_h, ALIGNED) + offsets(queries, columns, tq_r, tq_c, ALIGNED),
        mask=own,
        other=0.0,
    )
    k_plane = plane(k, batch, head // (H // G), k_b, k_h, ALIGNED)
    tk_plane = plane(tk, batch, head // (H // G), tk_b, tk_h, ALIGNED)
    k_offsets = offsets(keys, columns, k_r, k_c, ALIGNED)
    tk_offsets = offsets(keys, columns, tk_r, tk_c, ALIGNED)
    k_step, tk_step = k_r.to(tl.int64), tk_r.to(tl.int64)
    if not PLAIN:
        own_ids = segment_ids(q_ids, batch, queries, T, q_ids_b, q_ids_r, has_segments)

    total = tl.zeros([BLOCK_QUERY], tl.float32)
    sink = sink_of(sinks, head, sinks_h, has_sinks)
    step = sink_of(tsinks, head, tsinks_h, has_sinks)
    total += tl.where(sink == float("-inf"), 0.0, tl.exp(sink - row_max) * inverse_sum * step)
    for start in range(0, tl.max(seen, axis=0), BLOCK_KEY):
        present = start + keys < M
        allowed = (start + keys)[None, :] < seen[:, None]
        there = present[:, None] & within
        if not PLAIN:
            key_ids = segment_ids(kv_ids, batch, start + keys, M, kv_ids_b, kv_ids_r, has_segments)
            allowed = allowed & (own_ids[:, None] == key_ids[None, :])
            needed = overlap(own_ids, existing, key_ids, present)
        else:
            needed: tl.constexpr = True
        if needed:
            k_tile = tl.load(below(k_plane, start, k_step, ALIGNED) + k_offsets, mask=there, other=0.0)
            tk_tile = tl.load(below(tk_plane, start, tk_step, ALIGNED) + tk_offsets, mask=there, other=0.0)
            total += _moved(q_tile, k_tile, tq_tile, tk_tile, allowed, row_max, inverse_sum, scale, softcap, PLAIN)

    tl.store(tangent + rows, total, mask=existing)


def run(problem: Problem, tensors: Tensors, m: torch.Tensor, l: torch.Tensor) -> torch.Tensor:
    """Return the tangent of L, [B, H, T] in float32, of a checked problem with tangents of all its inputs."""
    tangent = torch.empty_like(m)
    launch(tangent_kernel, problem, tensors._replace(g=None), m, l, tangent, step="jvp")
    return tangent
