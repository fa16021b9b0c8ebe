"""The gradients that are a chunk's own, for all chunks in parallel.

With the state S before a chunk, the cotangent dS of the state after it, u, dy and dv (states.py):

    W_ij = scale e^(G_i - G_j) do_i . u_j,  j <= i;    Y_ij = e^(G_i - G_j) dy_i . u_j,  j < i
    dq = scale e^G do S^T + W k
    dk = W^T q - (beta Y + (beta Y)^T) k - beta e^G dy S^T + e^(G_end - G) u dS^T
    dbeta_i = dy_i . (v_i - e^G_i k_i S) - sum_j Y_ij k_i . k_j

and dg_t sums, over all that decays across t, the product with its cotangent: pairs (i, j) with j < t <= i, where it is
W_ij q_i . k_j - beta_i Y_ij k_i . k_j; what rows i >= t read of S; what the state after the chunk has of rows j < t;
and e^G_end <S, dS>. A pair that does not decay across t is in no sum: none is a difference of larger ones.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tiles import columns_within, dot, output_plane, walk
from ..tiles import load_step as load
from ..tiles import offsets as tile_offsets
from .blocks import padded
from .guardrails import Problem
from .launch import UNSPECIALISED, launch
from .tiles import decayed, factors, keep, kept, load_log2, load_row, program_chunk


@triton.jit(**UNSPECIALISED)
def local_kernel(
    q, k, do, decays, local,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, do_b, do_h, do_r, do_c,
    H, T, D, E, chunks, scale,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute du_local [CHUNK, BLOCK_VALUE] of one chunk of one head: scale times the scores, transposed, times do."""
    column = tl.program_id(0) % (VALUES // BLOCK_VALUE)
    index, batch, head, chunk = program_chunk(tl.program_id(0) // (VALUES // BLOCK_VALUE), H, chunks)
    number, first = index.to(tl.int64) * chunks + chunk, chunk * CHUNK
    rows, features = tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    values = column * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    there = (first + rows < T)[:, None]
    of_features, of_values = there & columns_within(features, D, ALIGNED), there & columns_within(values, E, ALIGNED)
    q_tile = load(walk(q, batch, head, rows, features, q_b, q_h, q_r, q_c, ALIGNED), first, of_features, ALIGNED)
    k_tile = load(walk(k, batch, head, rows, features, k_b, k_h, k_r, k_c, ALIGNED), first, of_features, ALIGNED)
    do_tile = load(walk(do, batch, head, rows, values, do_b, do_h, do_r, do_c, ALIGNED), first, of_values, ALIGNED)
    high, low = load_log2(decays, index, chunks, chunk, CHUNK)
    turned = dot(k_tile, tl.trans(q_tile), PRECISION, tl.float32)
    turned = decayed(turned, -high, -low, -high, -low, rows[:, None] <= rows[None, :])  # row j is the key here
    found = dot(turned.to(do_tile.dtype), do_tile, PRECISION, tl.float32) * scale
    keep(kept(local, number, rows, values, CHUNK, VALUES), found)


@triton.jit(**UNSPECIALISED)
def gradients_kernel(
    q, k, v, do, beta, decays, states, updates, costates, dsteps, dq, dk, dg, dbeta,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c, do_b, do_h, do_r, do_c, beta_b, beta_h, beta_r,
    H, T, D, E, chunks, scale,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, BLOCK_FEATURE: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dq and dk [CHUNK, D], dg and dbeta [CHUNK] of one chunk of one head.

    Rounded to the dtype of q, as operands: W and beta Y + (beta Y)^T, once each; and each result, once.
    """
    index, batch, head, chunk = program_chunk(tl.program_id(0), H, chunks)
    number, first = index.to(tl.int64) * chunks + chunk, chunk * CHUNK
    rows, values, features = tl.arange(0, CHUNK), tl.arange(0, VALUES), tl.arange(0, WIDTH)
    exist = first + rows < T
    there = exist[:, None]
    of_features, of_values = there & columns_within(features, D, ALIGNED), there & columns_within(values, E, ALIGNED)
    high, low = load_log2(decays, index, chunks, chunk, CHUNK)
    start, end, whole = factors(decays, index, chunks, chunk, high, low, CHUNK)
    weight = load_row(beta, batch, head, first + rows, exist, beta_b, beta_h, beta_r).to(tl.float32)
    do_tile = load(walk(do, batch, head, rows, values, do_b, do_h, do_r, do_c, ALIGNED), first, of_values, ALIGNED)
    update = tl.load(kept(updates, number, rows, values, CHUNK, VALUES))
    dstep = tl.load(kept(dsteps, number, rows, values, CHUNK, VALUES))
    v_tile = load(walk(v, batch, head, rows, values, v_b, v_h, v_r, v_c, ALIGNED), first, of_values, ALIGNED)
    dweight = tl.sum(dstep.to(tl.float32) * v_tile.to(tl.float32), axis=1)
    later = rows[:, None] > rows[None, :]
    of_scores = dot(do_tile, tl.trans(update), PRECISION, tl.float32) * scale
    of_scores = decayed(of_scores, high, low, high, low, rows[:, None] >= rows[None, :])
    of_couplings = decayed(dot(dstep, tl.trans(update), PRECISION, tl.float32), high, low, high, low, later)

    q_tile = load(walk(q, batch, head, rows, features, q_b, q_h, q_r, q_c, ALIGNED), first, of_features, ALIGNED)
    k_tile = load(walk(k, batch, head, rows, features, k_b, k_h, k_r, k_c, ALIGNED), first, of_features, ALIGNED)
    coupled = of_couplings * dot(k_tile, tl.trans(k_tile), PRECISION, tl.float32)
    dweight -= tl.sum(coupled, axis=1)
    pairs = of_scores * dot(q_tile, tl.trans(k_tile), PRECISION, tl.float32) - weight[:, None] * coupled
    pairs = tl.cumsum(tl.where(later, pairs, 0.0), axis=1)  # [i, m]: pairs (i, j), j <= m
    across = tl.sum(tl.where(later, pairs, 0.0), axis=0)  # [m]: those with i > m

    scores = of_scores.to(k_tile.dtype)
    couplings = weight[:, None] * of_couplings
    couplings = (couplings + tl.trans(couplings)).to(k_tile.dtype)
    read, written, carried = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32), 0.0
    for feature in range(0, WIDTH, BLOCK_FEATURE):
        own = feature + tl.arange(0, BLOCK_FEATURE)
        of_own = there & columns_within(own, D, ALIGNED)
        q_part = load(walk(q, batch, head, rows, own, q_b, q_h, q_r, q_c, ALIGNED), first, of_own, ALIGNED)
        k_part = load(walk(k, batch, head, rows, own, k_b, k_h, k_r, k_c, ALIGNED), first, of_own, ALIGNED)
        state = tl.load(kept(states, number, own, values, WIDTH, VALUES))
        costate = tl.load(kept(costates, number, own, values, WIDTH, VALUES))
        carried += tl.sum(tl.sum(state.to(tl.float32) * costate.to(tl.float32), axis=1), axis=0)
        from_output = dot(do_tile, tl.trans(state), PRECISION, tl.float32) * (scale * start)[:, None]
        read += tl.sum(from_output * q_part.to(tl.float32), axis=1)
        place = tile_offsets(first + rows, own, D, 1, ALIGNED)
        dq_part = dot(scores, k_part, PRECISION, tl.float32, acc=from_output)
        tl.store(output_plane(dq, index, T, D, ALIGNED) + place, dq_part.to(dq.dtype.element_ty), mask=of_own)
        from_step = dot(dstep, tl.trans(state), PRECISION, tl.float32) * start[:, None]
        met = tl.sum(from_step * k_part.to(tl.float32), axis=1)
        read -= weight * met
        dweight -= met
        from_end = dot(update, tl.trans(costate), PRECISION, tl.float32) * end[:, None]
        written += tl.sum(from_end * k_part.to(tl.float32), axis=1)
        dk_part = dot(tl.trans(scores), q_part, PRECISION, tl.float32, acc=from_end - weight[:, None] * from_step)
        dk_part -= dot(couplings, k_part, PRECISION, tl.float32)
        tl.store(output_plane(dk, index, T, D, ALIGNED) + place, dk_part.to(dk.dtype.element_ty), mask=of_own)

    carried *= whole
    across += tl.sum(tl.where(later, read[:, None], 0.0), axis=0) + tl.cumsum(written, axis=0) + carried
    plane = index.to(tl.int64) * T + first
    tl.store(dg + plane + rows + 1, across, mask=(rows < CHUNK - 1) & (first + rows + 1 < T))  # across[m] is of m + 1
    tl.store(dg + plane, tl.sum(read, axis=0) + carried)
    tl.store(dbeta + plane + rows, dweight.to(dbeta.dtype.element_ty), mask=exist)


def local_cotangents(
    problem: Problem, q: torch.Tensor, k: torch.Tensor, do: torch.Tensor, decays: torch.Tensor
) -> torch.Tensor:
    """Return du_local [B, H, chunks, chunk, Dv], Dv padded, in the dtype of q: what o alone gives to updates.

    Args:
        problem: what `guardrails.check` returned.
        q: [B, H, T, D]. k: [B, H, T, D]. do: cotangent of o [B, H, T, Dv]. Any strides.
        decays: of `chunks.inverses`.
    """
    columns = padded(problem.value_features)
    local = q.new_empty((*q.shape[:2], problem.chunks, problem.blocks.chunk, columns))
    launch(
        local_kernel, problem, "local", (q, k, do), (), (decays, local),
        (problem.heads, problem.rows, problem.features, problem.value_features, problem.chunks, problem.scale),
        programs=problem.chunks, columns=columns,
    )  # fmt: skip
    return local


def gradients(
    problem: Problem,
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    do: torch.Tensor,
    decays: torch.Tensor,
    states: tuple[torch.Tensor, torch.Tensor],
    costates: tuple[torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return dq, dk [B, H, T, D], dg in float32 and dbeta [B, H, T]; all but dg in the dtype of q.

    Args:
        problem: what `guardrails.check` returned.
        given: q, k [B, H, T, D], v [B, H, T, Dv] and beta [B, H, T], any strides.
        do: cotangent of o [B, H, T, Dv], any strides.
        decays: of `chunks.inverses`.
        states: and updates, of `states.forward_states`.
        costates: and dy, of `states.backward_states`.
    """
    q, k, v, beta = given
    dq, dk = q.new_empty(q.shape), q.new_empty(k.shape)
    dg, dbeta = q.new_empty(beta.shape, dtype=torch.float32), q.new_empty(beta.shape)
    launch(
        gradients_kernel, problem, "gradients", (q, k, v, do), (beta,),
        (decays, *states, *costates, dq, dk, dg, dbeta),
        (problem.heads, problem.rows, problem.features, problem.value_features, problem.chunks, problem.scale),
        programs=problem.chunks,
    )  # fmt: skip
    return dq, dk, dg, dbeta
