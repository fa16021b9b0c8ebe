"""The recurrence over chunks, forwards for the state S and backwards for its cotangent.

    forwards:   u = T beta (v - e^G k S);  S <- e^G_end S + k^T e^(G_end - G) u
    backwards:  du = du_local + e^(G_end - G) k dS;  dy = T^T du;  dv = beta dy
                dS <- e^G_end dS + q^T scale e^G do - k^T e^G dv

T is the chunk's inverse, y = beta (v - e^G k S) what it multiplies, and du_local what the outputs of the chunk give. A
program has a block of columns of v, of which the recurrences are independent, and of one piece of a sequence, whose
chunks it takes one after the other. Where few heads would leave a GPU idle, a sequence has several pieces: each is run
from zero and from the identity first, which gives the states that all pieces start from, and is then run from there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..tiles import columns_within, dot, output_plane, walk
from ..tiles import load_step as load
from ..tiles import offsets as tile_offsets
from .blocks import padded
from .guardrails import Problem
from .launch import UNSPECIALISED, launch
from .tiles import factors, keep, kept, load_log2, load_row, load_state, program_piece, store_state


@triton.jit(**UNSPECIALISED)
def states_kernel(
    k, v, beta, initial, decays, inverse, states, updates, last, ends,
    k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c, beta_b, beta_h, beta_r,
    initial_b, initial_h, initial_p, initial_r, initial_c,
    H, T, D, E, chunks, piece_chunks, pieces, starts, wanted,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Compute the state before each chunk and the updates [., BLOCK_VALUE] of one piece, and the last state.

    `initial` has the state before each piece. Without KEEP it is 0, and what is computed is the state after the piece
    alone, with columns behind those of v: what the piece makes of the identity, where v is 0.

    Rounded to the dtype of k, as operands: the state before a chunk, y, and the updates, with and without decay. The
    state itself and all sums are float32. `starts` and `wanted` say whether there is an initial state, and a last one
    to return.
    """
    COLUMNS: tl.constexpr = VALUES if KEEP else VALUES + WIDTH
    index, batch, head, piece, column = program_piece(COLUMNS // BLOCK_VALUE, H, pieces)
    rows, features = tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    values = column * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    of_features, of_values = columns_within(features, D, ALIGNED), columns_within(values, E, ALIGNED)
    k_rows = walk(k, batch, head, rows, features, k_b, k_h, k_r, k_c, ALIGNED)
    v_rows = walk(v, batch, head, rows, values, v_b, v_h, v_r, v_c, ALIGNED)
    if KEEP:
        strides = initial_b, initial_h, initial_p, initial_r, initial_c
        state = load_state(initial, batch, head, piece, features, values, D, E, starts, strides)
    else:
        state = tl.where(features[:, None] == values[None, :] - VALUES, 1.0, tl.zeros([WIDTH, BLOCK_VALUE], tl.float32))
    begin = piece * piece_chunks
    for chunk in range(begin, tl.minimum(begin + piece_chunks, chunks)):
        first, number = chunk * CHUNK, index.to(tl.int64) * chunks + chunk
        there = first + rows < T
        k_tile = load(k_rows, first, there[:, None] & of_features, ALIGNED)
        v_tile = load(v_rows, first, there[:, None] & of_values, ALIGNED)
        solve = tl.load(kept(inverse, number, rows, rows, CHUNK, CHUNK))
        weight = load_row(beta, batch, head, first + rows, there, beta_b, beta_h, beta_r).to(tl.float32)
        high, low = load_log2(decays, index, chunks, chunk, CHUNK)
        start, end, whole = factors(decays, index, chunks, chunk, high, low, CHUNK)
        before = state.to(k_tile.dtype)
        seen = dot(k_tile, before, PRECISION, tl.float32)
        step = weight[:, None] * (v_tile.to(tl.float32) - start[:, None] * seen)
        update = dot(solve, step.to(k_tile.dtype), PRECISION, tl.float32)
        if KEEP:
            keep(kept(states, number, features, values, WIDTH, VALUES), before)
            keep(kept(updates, number, rows, values, CHUNK, VALUES), update)
        update = (update * end[:, None]).to(k_tile.dtype)
        state = dot(tl.trans(k_tile), update, PRECISION, tl.float32, acc=state * whole)
    if KEEP:
        store_state(last, index, state, features, values, D, E, (piece == pieces - 1) & (wanted != 0))
    else:
        keep(kept(ends, index.to(tl.int64) * pieces + piece, features, values, WIDTH, VALUES + WIDTH), state)


@triton.jit(**UNSPECIALISED)
def costates_kernel(
    q, k, do, beta, dstate, decays, inverse, local, costates, dsteps, dv, dinitial, ends,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, do_b, do_h, do_r, do_c, beta_b, beta_h, beta_r,
    dstate_b, dstate_h, dstate_p, dstate_r, dstate_c,
    H, T, D, E, chunks, piece_chunks, pieces, scale, starts, wanted,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Compute the cotangent of the state after each chunk, dy and dv [., BLOCK_VALUE] of one piece, and dinitial.

    `dstate` has the cotangent of the state after each piece; without KEEP it is 0, and what is computed is that of the
    state before the piece alone. `local` is du_local.

    Rounded to the dtype of k, as operands: the cotangent after a chunk, du, dy, e^G dv and scale e^G do; dv as a
    result, once. `starts` and `wanted` say whether the last state has a cotangent, and whether that of the initial one
    is asked for.
    """
    index, batch, head, piece, column = program_piece(VALUES // BLOCK_VALUE, H, pieces)
    rows, features = tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    values = column * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    of_features, of_values = columns_within(features, D, ALIGNED), columns_within(values, E, ALIGNED)
    q_rows = walk(q, batch, head, rows, features, q_b, q_h, q_r, q_c, ALIGNED)
    k_rows = walk(k, batch, head, rows, features, k_b, k_h, k_r, k_c, ALIGNED)
    do_rows = walk(do, batch, head, rows, values, do_b, do_h, do_r, do_c, ALIGNED)
    dv_plane = output_plane(dv, index, T, E, ALIGNED)
    if KEEP:
        strides = dstate_b, dstate_h, dstate_p, dstate_r, dstate_c
        costate = load_state(dstate, batch, head, piece, features, values, D, E, starts, strides)
    else:
        costate = tl.zeros([WIDTH, BLOCK_VALUE], tl.float32)
    begin = piece * piece_chunks
    count = tl.minimum(piece_chunks, chunks - begin)
    for back in range(0, count):
        chunk = begin + count - 1 - back
        first, number = chunk * CHUNK, index.to(tl.int64) * chunks + chunk
        there = first + rows < T
        q_tile = load(q_rows, first, there[:, None] & of_features, ALIGNED)
        k_tile = load(k_rows, first, there[:, None] & of_features, ALIGNED)
        do_tile = load(do_rows, first, there[:, None] & of_values, ALIGNED)
        solve = tl.load(kept(inverse, number, rows, rows, CHUNK, CHUNK))
        weight = load_row(beta, batch, head, first + rows, there, beta_b, beta_h, beta_r).to(tl.float32)
        high, low = load_log2(decays, index, chunks, chunk, CHUNK)
        start, end, whole = factors(decays, index, chunks, chunk, high, low, CHUNK)
        after = costate.to(k_tile.dtype)
        dupdate = tl.load(kept(local, number, rows, values, CHUNK, VALUES)).to(tl.float32)
        dupdate += end[:, None] * dot(k_tile, after, PRECISION, tl.float32)
        dstep = dot(tl.trans(solve), dupdate.to(k_tile.dtype), PRECISION, tl.float32)
        dvalue = weight[:, None] * dstep
        if KEEP:
            keep(kept(costates, number, features, values, WIDTH, VALUES), after)
            keep(kept(dsteps, number, rows, values, CHUNK, VALUES), dstep)
            tl.store(
                dv_plane + tile_offsets(first + rows, values, E, 1, ALIGNED),
                dvalue.to(dv.dtype.element_ty),
                mask=there[:, None] & of_values,
            )
        from_output = ((scale * start)[:, None] * do_tile.to(tl.float32)).to(k_tile.dtype)
        from_steps = (-start[:, None] * dvalue).to(k_tile.dtype)
        costate = dot(tl.trans(q_tile), from_output, PRECISION, tl.float32, acc=costate * whole)
        costate = dot(tl.trans(k_tile), from_steps, PRECISION, tl.float32, acc=costate)
    if KEEP:
        store_state(dinitial, index, costate, features, values, D, E, (piece == 0) & (wanted != 0))
    else:
        keep(kept(ends, index.to(tl.int64) * pieces + piece, features, values, WIDTH, VALUES), costate)


@triton.jit(**UNSPECIALISED)
def entries_kernel(
    initial, own, ends, entries,
    initial_b, initial_h, initial_p, initial_r, initial_c,
    H, D, E, pieces, starts,
    WIDTH: tl.constexpr, VALUES: tl.constexpr, BLOCK_VALUE: tl.constexpr, SOLVE: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_VALUE columns of the state that each piece of one head starts from: S <- M S + N.

    N is what a piece has alone, in `own`; M is what it makes of the identity, behind the columns of v in `ends`.
    BACKWARD: the cotangent of the state after each piece, from the last to the first: dS <- M^T dS + N. In float32, and
    transposed: a dot of 16 rows takes no wgmma, of which compilers make wrong code (blocks.SPLIT_WARPS).
    """
    column, index = tl.program_id(0) % (VALUES // BLOCK_VALUE), tl.program_id(0) // (VALUES // BLOCK_VALUE)
    features, values = tl.arange(0, WIDTH), column * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    strides = initial_b, initial_h, initial_p, initial_c, initial_r
    state = load_state(initial, index // H, index % H, 0, values, features, E, D, starts, strides)
    for step in range(0, pieces):
        number = index.to(tl.int64) * pieces + (pieces - 1 - step if BACKWARD else step)
        keep(kept(entries, number, features, values, WIDTH, VALUES), tl.trans(state))
        moves = tl.load(kept(ends, number, features, VALUES + features, WIDTH, VALUES + WIDTH))
        if BACKWARD:
            alone = tl.load(kept(own, number, features, values, WIDTH, VALUES))
            state = dot(state, moves, SOLVE, tl.float32, acc=tl.trans(alone))
        else:
            alone = tl.load(kept(own, number, features, values, WIDTH, VALUES + WIDTH))
            state = dot(state, tl.trans(moves), SOLVE, tl.float32, acc=tl.trans(alone))


class Pieces(NamedTuple):
    """What the pieces of a sequence are known by: the state before each, and what each makes of zero and the identity.

    `entries` is [B, H, pieces, D, Dv] and `ends` [B, H, pieces, D, Dv + D], D and Dv padded, in float32; None where a
    sequence is one piece.
    """

    entries: torch.Tensor | None
    ends: torch.Tensor | None


def forward_pieces(
    problem: Problem,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    initial: torch.Tensor | None,
    decays: torch.Tensor,
    inverse: torch.Tensor,
) -> Pieces:
    """Return the pieces of a sequence; arguments are those of `forward_states`."""
    if problem.pieces == 1:
        return Pieces(None, None)
    width, columns = padded(problem.features), padded(problem.value_features)
    ends = _float32(k, problem.pieces, width, columns + width)
    launch(
        states_kernel, problem, "states", (k, v), (beta,), (decays, inverse, None, None, None, ends),
        (*_sizes(problem), 0, 0), states=(None,), programs=problem.pieces, columns=columns + width, KEEP=False,
    )  # fmt: skip
    return Pieces(_entries(problem, initial, ends, ends, backward=False), ends)


def forward_states(
    problem: Problem,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    initial: torch.Tensor | None,
    decays: torch.Tensor,
    inverse: torch.Tensor,
    pieces: Pieces,
    *,
    wanted: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the state before each chunk, the updates, and where `wanted` the last state [B, H, D, Dv] in float32.

    States are [B, H, chunks, D, Dv] and updates [B, H, chunks, chunk, Dv], D and Dv padded, in the dtype of k.

    Args:
        problem: what `guardrails.check` returned.
        k: [B, H, T, D]. v: [B, H, T, Dv]. beta: [B, H, T]. initial: [B, H, D, Dv] or None. Any strides.
        decays: and inverse, of `chunks.inverses`.
        pieces: of `forward_pieces`.
    """
    shape, columns = (*k.shape[:2], problem.chunks), padded(problem.value_features)
    states = k.new_empty((*shape, padded(problem.features), columns))
    updates = k.new_empty((*shape, problem.blocks.chunk, columns))
    last = _float32(k, problem.features, problem.value_features) if wanted else None
    before = initial if pieces.entries is None else pieces.entries
    launch(
        states_kernel, problem, "states", (k, v), (beta,), (decays, inverse, states, updates, last, None),
        (*_sizes(problem), int(before is not None), int(wanted)),
        states=(before,), programs=problem.pieces, columns=columns, KEEP=True,
    )  # fmt: skip
    return states, updates, last


def backward_states(
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    beta: torch.Tensor,
    do: torch.Tensor,
    dstate: torch.Tensor | None,
    decays: torch.Tensor,
    inverse: torch.Tensor,
    local: torch.Tensor,
    pieces: Pieces,
    *,
    wanted: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the cotangent of the state after each chunk, dy, dv, and where `wanted` that of the initial state.

    The first two are as states and updates of `forward_states`; dv is [B, H, T, Dv] in the dtype of k, and the last
    [B, H, D, Dv] in float32.

    Args:
        problem: what `guardrails.check` returned.
        q: [B, H, T, D]. k: [B, H, T, D]. beta: [B, H, T]. Any strides.
        do: cotangent of o [B, H, T, Dv]. dstate: that of the last state [B, H, D, Dv], or None. Any strides.
        decays: and inverse, of `chunks.inverses`. local: of `gradients.local_cotangents`.
        pieces: of `forward_pieces`.
    """
    shape, width, columns = (*k.shape[:2], problem.chunks), padded(problem.features), padded(problem.value_features)
    after = dstate
    if pieces.ends is not None:
        ends = _float32(k, problem.pieces, width, columns)
        launch(
            costates_kernel, problem, "costates", (q, k, do), (beta,),
            (decays, inverse, local, None, None, None, None, ends),
            (*_sizes(problem), problem.scale, 0, 0),
            states=(None,), programs=problem.pieces, columns=columns, KEEP=False,
        )  # fmt: skip
        after = _entries(problem, dstate, ends, pieces.ends, backward=True)
    costates = k.new_empty((*shape, width, columns))
    dsteps = k.new_empty((*shape, problem.blocks.chunk, columns))
    dv = k.new_empty((*k.shape[:3], problem.value_features))
    dinitial = _float32(k, problem.features, problem.value_features) if wanted else None
    launch(
        costates_kernel, problem, "costates", (q, k, do), (beta,),
        (decays, inverse, local, costates, dsteps, dv, dinitial, None),
        (*_sizes(problem), problem.scale, int(after is not None), int(wanted)),
        states=(after,), programs=problem.pieces, columns=columns, KEEP=True,
    )  # fmt: skip
    return costates, dsteps, dv, dinitial


def _entries(
    problem: Problem, initial: torch.Tensor | None, own: torch.Tensor, ends: torch.Tensor, *, backward: bool
) -> torch.Tensor:
    """Return the state before each piece, or backwards the cotangent of that after it, [B, H, pieces, D, Dv]."""
    columns = padded(problem.value_features)
    entries = _float32(ends, problem.pieces, padded(problem.features), columns)
    launch(
        entries_kernel, problem, "entries", (), (), (own, ends, entries),
        (problem.heads, problem.features, problem.value_features, problem.pieces, int(initial is not None)),
        states=(initial,), columns=columns, BACKWARD=backward,
    )  # fmt: skip
    return entries


def _sizes(problem: Problem) -> tuple[int, ...]:
    own = problem.heads, problem.rows, problem.features, problem.value_features
    return *own, problem.chunks, problem.piece_chunks, problem.pieces


def _float32(like: torch.Tensor, *sizes: int) -> torch.Tensor:
    return like.new_empty((*like.shape[:2], *sizes), dtype=torch.float32)
