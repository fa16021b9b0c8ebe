"""VJP by one kernel over tiles of keys, which rebuilds P once: dK, and a partial dQ for each tile, which a second sums.

The workspace is ceil(M / block) * B * H * T * D float32 numbers. Each program writes every element of its part, zeros
where causal or segments leave nothing to compute, so nothing is filled in advance and nothing is added atomically.
"""

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
    offsets,
    operand,
    output_plane,
    program_rows,
    store_tile,
    turned,
    visible_keys,
    walk,
    whole_queries,
)
from . import factors
from .blocks import interpreted
from .guardrails import Problem
from .launch import Tensors, in_parts, launch, unspecialised
from .separate import score_gradient
from .tiles import same_segment, segment_ids


@triton.jit(**unspecialised("shift", "weight", "dk", "partials"))
def fused_kernel(
    q, k, g, sinks, q_ids, kv_ids, tq, tk, tsinks,
    shift, weight, dk, partials,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, g_b, g_h, g_r, sinks_h, q_ids_b, q_ids_r, kv_ids_b, kv_ids_r,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tsinks_h,
    H, G, T, M, D, causal_offset, padded, has_sinks, has_segments, scale, softcap, rate,
    BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
    PLAIN: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dk [BLOCK_KEY, D] of one tile of keys and what these keys add to dq [H / G, T, D], without the scale.

    Rounded to the dtype of q: dS, as operand of its dots, and dk, after the scale. All else is float32.
    """
    index, batch, group, tile, keys = program_rows(M, G, BLOCK_KEY)
    shared = H // G
    planes = tl.num_programs(0) // tl.cdiv(M, BLOCK_KEY) * shared  # B * H
    rows = tl.arange(0, BLOCK_QUERY)
    columns = tl.arange(0, WIDTH)
    within = columns_within(columns, D, ALIGNED)
    present = keys < M
    k_tile = load_own(k, batch, group, keys, columns, present[:, None] & within, k_b, k_h, k_r, k_c, PRECISION, ALIGNED)
    if not PLAIN:
        own_ids = segment_ids(kv_ids, batch, keys, M, kv_ids_b, kv_ids_r, has_segments)
    first, whole = whole_queries(keys, M, causal_offset, BLOCK_QUERY)
    # what keys past M make of unmasked tiles would be infinite, times the zeros of their rows of k
    whole = tl.where((tile + 1) * BLOCK_KEY <= M, whole, T) if PLAIN else T

    gradient = tl.zeros([BLOCK_KEY, WIDTH], tl.float32)
    for member in range(0, shared):
        head = group * shared + member
        q_rows = walk(q, batch, head, rows, columns, q_b, q_h, q_r, q_c, ALIGNED)
        part = output_plane(partials, tile.to(tl.int64) * planes + batch * H + head, T, D, ALIGNED)
        nothing = tl.zeros([BLOCK_QUERY, WIDTH], tl.float32)
        for start in range(0, tl.minimum(first, T), BLOCK_QUERY):
            queries = start + rows
            mask = (queries < T)[:, None] & within
            tl.store(part + offsets(queries, columns, D, 1, ALIGNED), nothing, mask=mask)
        for PARTIAL in tl.static_range(0 if PLAIN else 1, 2):  # the tiles whose rows all see every key, then the others
            for start in range(first if PARTIAL else whole, tl.minimum(whole, T) if PARTIAL else T, BLOCK_QUERY):
                queries = start + rows
                existing = queries < T
                allowed = keys[:, None] < visible_keys(queries, T, M, causal_offset)[None, :] if PARTIAL else True
                if not PLAIN:
                    query_ids = segment_ids(q_ids, batch, queries, T, q_ids_b, q_ids_r, has_segments)
                    allowed, needed = same_segment(allowed, own_ids, present, query_ids, existing)
                else:
                    needed: tl.constexpr = True
                partial = tl.zeros([BLOCK_QUERY, WIDTH], tl.float32)
                if needed:
                    row_shift, row_weight = load_factors(shift, weight, batch * H + head, padded, queries)
                    q_tile = load_operand(q_rows, start, existing[:, None] & within, PRECISION, ALIGNED)
                    ds = score_gradient(
                        k_tile, q_tile, row_shift[None, :], row_weight[None, :], allowed, scale, softcap, rate,
                        PRECISION, EXACT, PLAIN, PARTIAL, TURNED=True,
                    )  # fmt: skip
                    ds = operand(ds, q_rows, PRECISION)
                    gradient = dot(ds, q_tile, PRECISION, tl.float32, acc=gradient)
                    partial = dot(turned(ds, PRECISION), k_tile, PRECISION, tl.float32)
                tl.store(part + offsets(queries, columns, D, 1, ALIGNED), partial, mask=existing[:, None] & within)

    store_tile(dk, index, M, D, keys, columns, gradient * scale, present[:, None] & within, ALIGNED)


@triton.jit(do_not_specialize=["tiles", "elements"], do_not_specialize_on_alignment=["partials", "dq"])
def sum_kernel(partials, dq, tiles, elements, scale, ELEMENTS: tl.constexpr):
    """Compute dq, flat: scale times the sum of its partials in the order of the keys, float32, rounded at its store."""
    at = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    total = tl.zeros([ELEMENTS], tl.float32)
    step = elements.to(tl.int64)
    for tile in range(0, tiles):
        total += tl.load(partials + tile * step + at, mask=at < elements, other=0.0)
    tl.store(dq + at, (total * scale).to(dq.dtype.element_ty), mask=at < elements)


def workspace_bytes(*, batch: int, heads: int, queries: int, keys: int, features: int, block: int) -> int:
    """Return the bytes of the partial dQ: ceil(M / block) * B * H * T * D float32 numbers."""
    return -(-keys // block) * batch * heads * queries * features * 4


def run(problem: Problem, tensors: Tensors, m: torch.Tensor, l: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return contiguous dq and dk of a checked problem."""
    q, tiles = tensors.q, triton.cdiv(problem.keys, problem.tile("dkv").key)
    dq, dk = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, tensors.k))
    partials = torch.empty((tiles, *q.shape), dtype=torch.float32, device=q.device)
    shift, weight = factors.run(problem, tensors, m, l)
    launch(fused_kernel, problem, in_parts(problem, tensors, "dkv"), shift, weight, dk, partials, step="dkv")
    size = 1 << 16 if interpreted() else 1024
    sum_kernel[(triton.cdiv(q.numel(), size),)](partials, dq, tiles, q.numel(), problem.scale, ELEMENTS=size)
    return dq, dk
