"""VJP by two kernels: dQ over tiles of queries, dK over tiles of keys; no atomics, so every run gives the same bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tiles import (
    columns_within,
    dot,
    load_factors,
    load_operand,
    load_own,
    operand,
    program_rows,
    store_tile,
    visible_keys,
    walk,
    whole_queries,
    whole_tiles,
)
from . import factors
from .guardrails import Problem
from .launch import Tensors, in_parts, launch, unspecialised
from .tiles import capped_scores, same_segment, segment_ids, weighed


@triton.jit
def score_gradient(
    rows, columns, shift, weight, visible, scale, softcap, rate,
    PRECISION: tl.constexpr, EXACT: tl.constexpr, PLAIN: tl.constexpr, PARTIAL: tl.constexpr,
    TURNED: tl.constexpr = False,
):  # fmt: skip
    """Return dS = g P (1 - tanh^2) of a tile of q [rows] and one of k [columns], or with TURNED dS^T of k and q.

    In float32; it is exactly 0 where PARTIAL and a query does not see the key.
    """
    scores, slope = capped_scores(rows, columns, scale, softcap, PRECISION, EXACT, PLAIN, TURNED)
    return weighed(scores, shift, weight, visible, rate, PARTIAL) * slope


@triton.jit(**unspecialised("shift", "weight", "dq"))
def query_kernel(
    q, k, g, sinks, q_ids, kv_ids, tq, tk, tsinks,
    shift, weight, dq,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, g_b, g_h, g_r, sinks_h, q_ids_b, q_ids_r, kv_ids_b, kv_ids_r,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tsinks_h,
    H, G, T, M, D, causal_offset, padded, has_sinks, has_segments, scale, softcap, rate,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
    PLAIN: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
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
    whole, last = whole_tiles(seen, existing, M, BLOCK_KEY) if PLAIN else 0, tl.max(seen, axis=0)
    row_shift, row_weight = load_factors(shift, weight, index, padded, queries)
    q_tile = load_own(
        q, batch, head, queries, columns, existing[:, None] & within, q_b, q_h, q_r, q_c, PRECISION, ALIGNED
    )
    k_rows = walk(k, batch, head // (H // G), keys, columns, k_b, k_h, k_r, k_c, ALIGNED)
    if not PLAIN:
        own_ids = segment_ids(q_ids, batch, queries, T, q_ids_b, q_ids_r, has_segments)

    gradient = tl.zeros([BLOCK_QUERY, WIDTH], tl.float32)
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
                ds = score_gradient(
                    q_tile, k_tile, row_shift[:, None], row_weight[:, None], allowed, scale, softcap, rate,
                    PRECISION, EXACT, PLAIN, PARTIAL,
                )  # fmt: skip
                gradient = dot(operand(ds, k_rows, PRECISION), k_tile, PRECISION, tl.float32, acc=gradient)

    store_tile(dq, index, T, D, queries, columns, gradient * scale, existing[:, None] & within, ALIGNED)


@triton.jit(**unspecialised("shift", "weight", "dk"))
def key_kernel(
    q, k, g, sinks, q_ids, kv_ids, tq, tk, tsinks,
    shift, weight, dk,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, g_b, g_h, g_r, sinks_h, q_ids_b, q_ids_r, kv_ids_b, kv_ids_r,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tsinks_h,
    H, G, T, M, D, causal_offset, padded, has_sinks, has_segments, scale, softcap, rate,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
    PLAIN: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dk [BLOCK_KEY, D] = scale dS^T Q of one tile of keys, summed over the query heads of its group.

    dS comes out transposed, as operand of its dot: no tile goes through memory to be turned over.
    Rounded to the dtype of q: dS, as operand of its dot with q, and dk, after the scale. All else is float32.
    """
    index, batch, group, _, keys = program_rows(M, G, BLOCK_KEY)
    shared = H // G
    rows = tl.arange(0, BLOCK_QUERY)
    columns = tl.arange(0, WIDTH)
    within = columns_within(columns, D, ALIGNED)
    present = keys < M
    k_tile = load_own(k, batch, group, keys, columns, present[:, None] & within, k_b, k_h, k_r, k_c, PRECISION, ALIGNED)
    if not PLAIN:
        own_ids = segment_ids(kv_ids, batch, keys, M, kv_ids_b, kv_ids_r, has_segments)
    first, whole = whole_queries(keys, M, causal_offset, BLOCK_QUERY)
    whole = whole if PLAIN else T

    gradient = tl.zeros([BLOCK_KEY, WIDTH], tl.float32)
    for member in range(0, shared):
        head = group * shared + member
        q_rows = walk(q, batch, head, rows, columns, q_b, q_h, q_r, q_c, ALIGNED)
        for PARTIAL in tl.static_range(0 if PLAIN else 1, 2):  # the tiles whose rows all see every key, then the others
            for start in range(first if PARTIAL else whole, tl.minimum(whole, T) if PARTIAL else T, BLOCK_QUERY):
                queries = start + rows
                existing = queries < T
                allowed = keys[:, None] < visible_keys(queries, T, M, causal_offset)[None, :] if PARTIAL else True
                row_shift, row_weight = load_factors(shift, weight, batch * H + head, padded, queries)
                if not PLAIN:
                    query_ids = segment_ids(q_ids, batch, queries, T, q_ids_b, q_ids_r, has_segments)
                    allowed, needed = same_segment(allowed, own_ids, present, query_ids, existing)
                else:
                    needed: tl.constexpr = True
                if needed:
                    q_tile = load_operand(q_rows, start, existing[:, None] & within, PRECISION, ALIGNED)
                    ds = score_gradient(
                        k_tile, q_tile, row_shift[None, :], row_weight[None, :], allowed, scale, softcap, rate,
                        PRECISION, EXACT, PLAIN, PARTIAL, TURNED=True,
                    )  # fmt: skip
                    gradient = dot(operand(ds, q_rows, PRECISION), q_tile, PRECISION, tl.float32, acc=gradient)

    store_tile(dk, index, M, D, keys, columns, gradient * scale, present[:, None] & within, ALIGNED)


def run(
    problem: Problem, tensors: Tensors, m: torch.Tensor, l: torch.Tensor, needs: tuple[bool, bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return contiguous dq and dk of a checked problem, None where not needed."""
    dq, dk = (
        torch.empty(primal.shape, dtype=primal.dtype, device=primal.device) if need else None
        for primal, need in zip((tensors.q, tensors.k), needs, strict=True)
    )
    shift, weight = factors.run(problem, tensors, m, l)
    if any(needs):
        tensors = in_parts(problem, tensors, "dq")
    if needs[0]:
        launch(query_kernel, problem, tensors, shift, weight, dq, step="dq")
    if needs[1]:
        launch(key_kernel, problem, tensors, shift, weight, dk, step="dkv")
    return dq, dk
