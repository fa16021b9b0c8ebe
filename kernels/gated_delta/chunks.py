"""What a chunk has of its own, computed for all chunks in parallel: decays and the inverse, and at last the output.

Within a chunk that starts from state S the updates u solve (I + A) u = beta (v - e^G k S) with the strictly lower
A_ij = beta_i e^(G_i - G_j) k_i . k_j, where G sums g since the start. `inverse_kernel` inverts I + A; states.py then
has u and S of each chunk, and `output_kernel` computes o_i = scale (e^G_i q_i S + sum over j <= i of e^(G_i - G_j)
(q_i . k_j) u_j).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..launching import LOG2E
from ..tiles import columns_within, dot, output_plane, plane, walk
from ..tiles import load_step as load
from ..tiles import offsets as tile_offsets
from .blocks import padded
from .guardrails import Problem
from .launch import UNSPECIALISED, launch
from .tiles import decay_places, decayed, keep, kept, load_log2, parts, power, program_chunk

BLOCK = tl.constexpr(16)
"""Rows of the blocks that a chunk is inverted by: the least that a dot takes."""

RATE = tl.constexpr(LOG2E)
FLOOR = tl.constexpr(-2048.0)
"""Below this log2 of a decay it is this: 0 all the same, in float64 too, and a sum of 64 of them is at most 2^17."""


@triton.jit
def load_block(
    k_rows, g_row, beta_row, decays, index, T, chunks, first, before, of_features,
    CHUNK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Return k [16, WIDTH], beta [16] and log2 decays, in two parts [16], of the block at row `first`; keep the decays.

    `k_rows` is what `walk` returned; `g_row` and `beta_row` are (pointer to a plane, row stride). `before` is the log2
    decay of the chunk's earlier blocks, in float64; the last that is returned has this one too.
    """
    rows = first + tl.arange(0, BLOCK)
    there = rows < T
    k_tile = load(k_rows, first, there[:, None] & of_features, ALIGNED)
    weight = tl.load(beta_row[0] + rows.to(tl.int64) * beta_row[1], mask=there, other=0.0).to(tl.float32)
    decay = tl.load(g_row[0] + rows.to(tl.int64) * g_row[1], mask=there, other=0.0).to(tl.float64) * RATE
    decay = tl.where(decay < FLOOR, FLOOR, decay)
    total = before + tl.cumsum(decay, axis=0)
    high, low = parts(total)
    place, rest = decay_places(decays, index, chunks, rows, CHUNK)
    tl.store(place, high)
    tl.store(rest, low)
    return k_tile, weight, high, low, before + tl.sum(decay, axis=0)


@triton.jit
def coupling(row, key, PRECISION: tl.constexpr):
    """Return the block [16, 16] of A of two blocks, each as `load_block` returned it, the key's an earlier one."""
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    products = row[1][:, None] * dot(row[0], tl.trans(key[0]), PRECISION, tl.float32)
    return decayed(products, row[2], row[3], key[2], key[3], i + BLOCK > j)


@triton.jit
def own_coupling(row, PRECISION: tl.constexpr):
    """Return the block [16, 16] of A of one block, which is strictly lower."""
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    products = row[1][:, None] * dot(row[0], tl.trans(row[0]), PRECISION, tl.float32)
    return decayed(products, row[2], row[3], row[2], row[3], i > j)


@triton.jit
def stacked(stack, number, block):
    """Return a stack [., 16, 16] with this block at its number."""
    own = tl.arange(0, stack.shape[0])[:, None, None] == number
    return tl.where(own, block[None, :, :], stack)


@triton.jit
def block_of(stack, number):
    """Return one block [16, 16] of a stack [., 16, 16]."""
    own = tl.arange(0, stack.shape[0])[:, None, None] == number
    return tl.sum(tl.where(own, stack, 0.0), axis=0)


@triton.jit
def invert(stack):
    """Return the inverses of I + L for each strictly lower L [16, 16] of a stack [., 16, 16], by substitution."""
    rows, columns = tl.arange(0, BLOCK)[None, :, None], tl.arange(0, BLOCK)[None, None, :]
    inverse = tl.where(rows == columns, 1.0, tl.zeros(stack.shape, tl.float32))
    for step in range(0, BLOCK - 1):  # rows below take away what row `step`, which is final, has in them
        share = tl.sum(tl.where(columns == step, stack, 0.0), axis=2, keep_dims=True)
        row = tl.sum(tl.where(rows == step, inverse, 0.0), axis=1, keep_dims=True)
        inverse -= share * row
    return inverse


@triton.jit
def keep_block(inverse, number, block, row, column, CHUNK: tl.constexpr):
    """Store the block [16, 16] at a row and column of the inverse [CHUNK, CHUNK] of a number, 64-bit."""
    own = tl.arange(0, BLOCK)
    keep(kept(inverse, number, own + row, own + column, CHUNK, CHUNK), block)


@triton.jit(**UNSPECIALISED)
def inverse_kernel(
    k, g, beta, decays, inverse,
    k_b, k_h, k_r, k_c, g_b, g_h, g_r, beta_b, beta_h, beta_r,
    H, T, D, chunks,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, PRECISION: tl.constexpr, SOLVE: tl.constexpr,
):  # fmt: skip
    """Compute the log2 decays [CHUNK] of one chunk of one head and (I + A)^-1 [CHUNK, CHUNK], by blocks of 16.

    Blocks on the diagonal by substitution, those below by X_ij = -X_ii sum over j <= m < i of A_im X_mj, all in float32
    with dots in SOLVE; the inverse is rounded to the dtype of k, once.
    """
    index, batch, head, chunk = program_chunk(tl.program_id(0), H, chunks)
    number, first = index.to(tl.int64) * chunks + chunk, chunk * CHUNK
    features = tl.arange(0, WIDTH)
    of_features = columns_within(features, D, ALIGNED)
    k_rows = walk(k, batch, head, tl.arange(0, BLOCK), features, k_b, k_h, k_r, k_c, ALIGNED)
    g_row = plane(g, batch, head, g_b, g_h, False), g_r
    beta_row = plane(beta, batch, head, beta_b, beta_h, False), beta_r
    none = tl.zeros([BLOCK, BLOCK], tl.float32)
    stack = tl.zeros([CHUNK // BLOCK, BLOCK, BLOCK], tl.float32)
    one = load_block(k_rows, g_row, beta_row, decays, index, T, chunks, first, 0.0, of_features, CHUNK, ALIGNED)
    stack = stacked(stack, 0, own_coupling(one, PRECISION))
    if CHUNK >= 32:
        two = load_block(
            k_rows, g_row, beta_row, decays, index, T, chunks, first + 16, one[4], of_features, CHUNK, ALIGNED
        )
        a21 = coupling(two, one, PRECISION)
        stack = stacked(stack, 1, own_coupling(two, PRECISION))
    if CHUNK == 64:
        three = load_block(
            k_rows, g_row, beta_row, decays, index, T, chunks, first + 32, two[4], of_features, CHUNK, ALIGNED
        )
        a31, a32 = coupling(three, one, PRECISION), coupling(three, two, PRECISION)
        stack = stacked(stack, 2, own_coupling(three, PRECISION))
        four = load_block(
            k_rows, g_row, beta_row, decays, index, T, chunks, first + 48, three[4], of_features, CHUNK, ALIGNED
        )
        a41, a42 = coupling(four, one, PRECISION), coupling(four, two, PRECISION)
        a43 = coupling(four, three, PRECISION)
        stack = stacked(stack, 3, own_coupling(four, PRECISION))
    stack = invert(stack)
    x11 = block_of(stack, 0)
    keep_block(inverse, number, x11, 0, 0, CHUNK)
    if CHUNK >= 32:
        x22 = block_of(stack, 1)
        x21 = -dot(x22, dot(a21, x11, SOLVE, tl.float32), SOLVE, tl.float32)
        keep_block(inverse, number, none, 0, 16, CHUNK)
        keep_block(inverse, number, x21, 16, 0, CHUNK)
        keep_block(inverse, number, x22, 16, 16, CHUNK)
    if CHUNK == 64:
        x33, x44 = block_of(stack, 2), block_of(stack, 3)
        x32 = -dot(x33, dot(a32, x22, SOLVE, tl.float32), SOLVE, tl.float32)
        x31 = dot(a32, x21, SOLVE, tl.float32, acc=dot(a31, x11, SOLVE, tl.float32))
        x31 = -dot(x33, x31, SOLVE, tl.float32)
        x43 = -dot(x44, dot(a43, x33, SOLVE, tl.float32), SOLVE, tl.float32)
        x42 = dot(a43, x32, SOLVE, tl.float32, acc=dot(a42, x22, SOLVE, tl.float32))
        x42 = -dot(x44, x42, SOLVE, tl.float32)
        x41 = dot(a42, x21, SOLVE, tl.float32, acc=dot(a41, x11, SOLVE, tl.float32))
        x41 = -dot(x44, dot(a43, x31, SOLVE, tl.float32, acc=x41), SOLVE, tl.float32)
        keep_block(inverse, number, none, 0, 32, CHUNK)
        keep_block(inverse, number, none, 0, 48, CHUNK)
        keep_block(inverse, number, none, 16, 32, CHUNK)
        keep_block(inverse, number, none, 16, 48, CHUNK)
        keep_block(inverse, number, none, 32, 48, CHUNK)
        keep_block(inverse, number, x31, 32, 0, CHUNK)
        keep_block(inverse, number, x32, 32, 16, CHUNK)
        keep_block(inverse, number, x33, 32, 32, CHUNK)
        keep_block(inverse, number, x41, 48, 0, CHUNK)
        keep_block(inverse, number, x42, 48, 16, CHUNK)
        keep_block(inverse, number, x43, 48, 32, CHUNK)
        keep_block(inverse, number, x44, 48, 48, CHUNK)


@triton.jit(**UNSPECIALISED)
def output_kernel(
    q, k, decays, states, updates, o,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c,
    H, T, D, E, chunks, scale,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute o [CHUNK, BLOCK_VALUE] of one chunk of one head, scores rounded to the dtype of q as operands."""
    column = tl.program_id(0) % (VALUES // BLOCK_VALUE)
    index, batch, head, chunk = program_chunk(tl.program_id(0) // (VALUES // BLOCK_VALUE), H, chunks)
    number = index.to(tl.int64) * chunks + chunk
    rows, features = tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    values = column * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    first = chunk * CHUNK
    there = (first + rows < T)[:, None]
    of_features = there & columns_within(features, D, ALIGNED)
    q_tile = load(walk(q, batch, head, rows, features, q_b, q_h, q_r, q_c, ALIGNED), first, of_features, ALIGNED)
    k_tile = load(walk(k, batch, head, rows, features, k_b, k_h, k_r, k_c, ALIGNED), first, of_features, ALIGNED)
    state = tl.load(kept(states, number, features, values, WIDTH, VALUES))
    update = tl.load(kept(updates, number, rows, values, CHUNK, VALUES))
    high, low = load_log2(decays, index, chunks, chunk, CHUNK)
    start = power(high, low)
    scores = dot(q_tile, tl.trans(k_tile), PRECISION, tl.float32)
    scores = decayed(scores, high, low, high, low, rows[:, None] >= rows[None, :])
    out = dot(q_tile, state, PRECISION, tl.float32) * start[:, None]
    out = dot(scores.to(update.dtype), update, PRECISION, tl.float32, acc=out) * scale
    place = output_plane(o, index, T, E, ALIGNED) + tile_offsets(first + rows, values, E, 1, ALIGNED)
    tl.store(place, out.to(o.dtype.element_ty), mask=there & columns_within(values, E, ALIGNED))


def inverses(
    problem: Problem, k: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the decays [B, H, 2, padded T] in float32, and (I + A)^-1 of each chunk [B, H, chunks, chunk, chunk].

    Args:
        problem: what `guardrails.check` returned.
        k: [B, H, T, D], whose dtype the inverse has. g: [B, H, T] in float32. beta: [B, H, T]. Any strides.
    """
    shape, chunk = k.shape[:2], problem.blocks.chunk
    decays = k.new_empty((*shape, 2, problem.chunks * chunk), dtype=torch.float32)
    inverse = k.new_empty((*shape, problem.chunks, chunk, chunk))
    launch(
        inverse_kernel, problem, "inverse", (k,), (g, beta), (decays, inverse),
        (problem.heads, problem.rows, problem.features, problem.chunks), programs=problem.chunks,
    )  # fmt: skip
    return decays, inverse


def output(
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    decays: torch.Tensor,
    states: torch.Tensor,
    updates: torch.Tensor,
) -> torch.Tensor:
    """Return o [B, H, T, Dv] in the dtype of q, contiguous.

    Args:
        problem: what `guardrails.check` returned.
        q: [B, H, T, D]. k: [B, H, T, D]. Any strides.
        decays: of `inverses`.
        states: before each chunk. updates: of each row, both of `states.forward_states`.
    """
    o = q.new_empty((*q.shape[:3], problem.value_features))
    launch(
        output_kernel, problem, "output", (q, k), (), (decays, states, updates, o),
        (problem.heads, problem.rows, problem.features, problem.value_features, problem.chunks, problem.scale),
        programs=problem.chunks, columns=padded(problem.value_features),
    )  # fmt: skip
    return o
