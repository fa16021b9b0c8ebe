"""The recurrence over chunks, forwards for the state S and backwards for its cotangent, one chunk after the other.

    forwards:   u = T beta (v - e^G k S);  S <- e^G_end S + k^T e^(G_end - G) u
    backwards:  du = du_local + e^(G_end - G) k dS;  dy = T^T du;  dv = beta dy
                dS <- e^G_end dS + q^T scale e^G do - k^T e^G dv

T is the chunk's inverse, y = beta (v - e^G k S) what it multiplies, and du_local what the outputs of the chunk give. A
program has a block of columns of v, of which the recurrences are independent.
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
from .tiles import factors, keep, kept, load_log2, load_row, load_state, store_state


@triton.jit(**UNSPECIALISED)
def states_kernel(
    k, v, beta, initial, decays, inverse, states, updates, last,
    k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c, beta_b, beta_h, beta_r, initial_b, initial_h, initial_r, initial_c,
    H, T, D, E, chunks, starts, ends,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the state before each chunk and the updates [T, BLOCK_VALUE] of one head; and the state at the end.

    Rounded to the dtype of k, as operands: the state before a chunk, y, and the updates, with and without decay. The
    state itself and all sums are float32. `starts` and `ends` say whether there is an initial state, and a last one to
    return.
    """
    column, index = tl.program_id(0) % (VALUES // BLOCK_VALUE), tl.program_id(0) // (VALUES // BLOCK_VALUE)
    batch, head = index // H, index % H
    rows, features = tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    values = column * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    of_features, of_values = columns_within(features, D, ALIGNED), columns_within(values, E, ALIGNED)
    k_rows = walk(k, batch, head, rows, features, k_b, k_h, k_r, k_c, ALIGNED)
    v_rows = walk(v, batch, head, rows, values, v_b, v_h, v_r, v_c, ALIGNED)
    state = load_state(
        initial, batch, head, features, values, D, E, starts, (initial_b, initial_h, initial_r, initial_c)
    )
    for chunk in range(0, chunks):
        first, number = chunk * CHUNK, index.to(tl.int64) * chunks + chunk
        there = first + rows < T
        k_tile = load(k_rows, first, there[:, None] & of_features, ALIGNED)
        v_tile = load(v_rows, first, there[:, None] & of_values, ALIGNED)
        solve = tl.load(kept(inverse, number, rows, rows, CHUNK, CHUNK))
        weight = load_row(beta, batch, head, first + rows, there, beta_b, beta_h, beta_r).to(tl.float32)
        high, low = load_log2(decays, index, chunks, chunk, CHUNK)
        start, end, whole = factors(decays, index, chunks, chunk, high, low, CHUNK)
        before = state.to(k_tile.dtype)
        keep(kept(states, number, features, values, WIDTH, VALUES), before)
        seen = dot(k_tile, before, PRECISION, tl.float32)
        step = weight[:, None] * (v_tile.to(tl.float32) - start[:, None] * seen)
        update = dot(solve, step.to(k_tile.dtype), PRECISION, tl.float32)
        keep(kept(updates, number, rows, values, CHUNK, VALUES), update)
        update = (update * end[:, None]).to(k_tile.dtype)
        state = dot(tl.trans(k_tile), update, PRECISION, tl.float32, acc=state * whole)
    store_state(last, index, state, features, values, D, E, ends)


@triton.jit(**UNSPECIALISED)
def costates_kernel(
    q, k, do, beta, dstate, decays, inverse, local, costates, dsteps, dv, dinitial,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, do_b, do_h, do_r, do_c, beta_b, beta_h, beta_r,
    dstate_b, dstate_h, dstate_r, dstate_c,
    H, T, D, E, chunks, scale, starts, ends,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the cotangent of the state after each chunk, dy and dv [T, BLOCK_VALUE] of one head, and dinitial.

    `local` is du_local. Rounded to the dtype of k, as operands: the cotangent after a chunk, du, dy, e^G dv and
    scale e^G do; dv as a result, once. `starts` and `ends` say whether the last state has a cotangent, and whether that
    of the initial one is asked for.
    """
    column, index = tl.program_id(0) % (VALUES // BLOCK_VALUE), tl.program_id(0) // (VALUES // BLOCK_VALUE)
    batch, head = index // H, index % H
    rows, features = tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    values = column * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    of_features, of_values = columns_within(features, D, ALIGNED), columns_within(values, E, ALIGNED)
    q_rows = walk(q, batch, head, rows, features, q_b, q_h, q_r, q_c, ALIGNED)
    k_rows = walk(k, batch, head, rows, features, k_b, k_h, k_r, k_c, ALIGNED)
    do_rows = walk(do, batch, head, rows, values, do_b, do_h, do_r, do_c, ALIGNED)
    dv_plane = output_plane(dv, index, T, E, ALIGNED)
    costate = load_state(dstate, batch, head, features, values, D, E, starts, (dstate_b, dstate_h, dstate_r, dstate_c))
    for back in range(0, chunks):
        chunk = chunks - 1 - back
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
        keep(kept(costates, number, features, values, WIDTH, VALUES), after)
        dupdate = tl.load(kept(local, number, rows, values, CHUNK, VALUES)).to(tl.float32)
        dupdate += end[:, None] * dot(k_tile, after, PRECISION, tl.float32)
        dstep = dot(tl.trans(solve), dupdate.to(k_tile.dtype), PRECISION, tl.float32)
        keep(kept(dsteps, number, rows, values, CHUNK, VALUES), dstep)
        dvalue = weight[:, None] * dstep
        tl.store(
            dv_plane + tile_offsets(first + rows, values, E, 1, ALIGNED),
            dvalue.to(dv.dtype.element_ty),
            mask=there[:, None] & of_values,
        )
        from_output = ((scale * start)[:, None] * do_tile.to(tl.float32)).to(k_tile.dtype)
        from_steps = (-start[:, None] * dvalue).to(k_tile.dtype)
        costate = dot(tl.trans(q_tile), from_output, PRECISION, tl.float32, acc=costate * whole)
        costate = dot(tl.trans(k_tile), from_steps, PRECISION, tl.float32, acc=costate)
    store_state(dinitial, index, costate, features, values, D, E, ends)


def forward_states(
    problem: Problem,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    initial: torch.Tensor | None,
    decays: torch.Tensor,
    inverse: torch.Tensor,
    *,
    ends: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the state before each chunk, the updates, and where `ends` the last state [B, H, D, Dv] in float32.

    States are [B, H, chunks, D, Dv] and updates [B, H, chunks, chunk, Dv], D and Dv padded, in the dtype of k.

    Args:
        problem: what `guardrails.check` returned.
        k: [B, H, T, D]. v: [B, H, T, Dv]. beta: [B, H, T]. initial: [B, H, D, Dv] or None. Any strides.
        decays: and inverse, of `chunks.inverses`.
    """
    shape, columns = (*k.shape[:2], problem.chunks), padded(problem.value_features)
    states = k.new_empty((*shape, padded(problem.features), columns))
    updates = k.new_empty((*shape, problem.blocks.chunk, columns))
    last = _state(problem, k) if ends else None
    launch(
        states_kernel, problem, "states", (k, v), (beta,), (decays, inverse, states, updates, last),
        (problem.heads, problem.rows, problem.features, problem.value_features, problem.chunks,
         int(initial is not None), int(ends)),
        states=(initial,), columns=columns,
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
    *,
    ends: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the cotangent of the state after each chunk, dy, dv, and where `ends` that of the initial state.

    The first two are as states and updates of `forward_states`; dv is [B, H, T, Dv] in the dtype of k, and the last
    [B, H, D, Dv] in float32.

    Args:
        problem: what `guardrails.check` returned.
        q: [B, H, T, D]. k: [B, H, T, D]. beta: [B, H, T]. Any strides.
        do: cotangent of o [B, H, T, Dv]. dstate: that of the last state [B, H, D, Dv], or None. Any strides.
        decays: and inverse, of `chunks.inverses`. local: of `gradients.local_cotangents`.
    """
    shape, columns = (*k.shape[:2], problem.chunks), padded(problem.value_features)
    costates = k.new_empty((*shape, padded(problem.features), columns))
    dsteps = k.new_empty((*shape, problem.blocks.chunk, columns))
    dv = k.new_empty((*k.shape[:3], problem.value_features))
    dinitial = _state(problem, k) if ends else None
    launch(
        costates_kernel, problem, "costates", (q, k, do), (beta,),
        (decays, inverse, local, costates, dsteps, dv, dinitial),
        (problem.heads, problem.rows, problem.features, problem.value_features, problem.chunks, problem.scale,
         int(dstate is not None), int(ends)),
        states=(dstate,), columns=columns,
    )  # fmt: skip
    return costates, dsteps, dv, dinitial


def _state(problem: Problem, like: torch.Tensor) -> torch.Tensor:
    shape = (*like.shape[:2], problem.features, problem.value_features)
    return like.new_empty(shape, dtype=torch.float32)
