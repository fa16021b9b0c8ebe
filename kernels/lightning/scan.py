"""The scan that forward and VJP are made of: out_i = x_i S0 + sum over j <= i of (x_i . y_j) z_j.

Forward is scan(q, k, v); dq = scan(g, v, k) from the transposed state; backwards in time, dk = scan(v, g, q) and
dv = scan(k, q, g). A sequence is cut into pieces. A first kernel sums y^T z over each piece, a second walks over each
piece from the state of those before it; with one piece there is no first kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tiles import columns_within, output_plane
from .guardrails import Problem
from .launch import UNSPECIALISED, launch
from .tiles import (
    first_row,
    load_step,
    masked_scores,
    operand,
    program_piece,
    state_before,
    store_rows,
    store_state,
    times_state,
    times_values,
    walk,
)


@triton.jit(**UNSPECIALISED)
def sums_kernel(
    y, z, sums,
    y_b, y_h, y_r, y_c, z_b, z_h, z_r, z_c,
    H, N, D, E, direction, piece_rows, pieces,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Sum y^T z [WIDTH, BLOCK_VALUE] over one piece of one head, in float32; the last piece has none after it."""
    index, batch, head, piece, values = program_piece(E, H, pieces - 1, BLOCK_VALUE)
    features = tl.arange(0, WIDTH)
    rows = tl.arange(0, CHUNK)
    y_rows = walk(y, batch, head, rows, features, y_b, y_h, y_r, y_c, ALIGNED)
    z_rows = walk(z, batch, head, rows, values, z_b, z_h, z_r, z_c, ALIGNED)
    first = first_row(piece, pieces, piece_rows, direction)
    of_features, of_values = columns_within(features, D, ALIGNED), columns_within(values, E, ALIGNED)
    state = tl.zeros([WIDTH, BLOCK_VALUE], tl.float32)
    for start in range(first, tl.minimum(first + piece_rows, N), CHUNK):
        existing = (start + rows < N)[:, None]
        y_tile = load_step(y_rows, start, existing & of_features, ALIGNED)
        z_tile = load_step(z_rows, start, existing & of_values, ALIGNED)
        state = tl.dot(tl.trans(y_tile), z_tile, acc=state, input_precision="ieee")
    store_state(sums, index.to(tl.int64) * (pieces - 1) + piece, state, features, values, D, E)


@triton.jit(**UNSPECIALISED)
def scan_kernel(
    x, y, z, initial, sums, out, last,
    x_b, x_h, x_r, x_c, y_b, y_h, y_r, y_c, z_b, z_h, z_r, z_c, initial_b, initial_h, initial_r, initial_c,
    sums_r, sums_c,
    H, N, D, E, direction, piece_rows, pieces, starts, ends,
    CHUNK: tl.constexpr, MICRO: tl.constexpr, WIDTH: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Compute out [piece_rows, BLOCK_VALUE] of one piece of one head; the last piece writes the state after it.

    Rounded to the dtype of x: scores and the state before a chunk, as operands of their dots, and out, once. The state
    and all sums are float32. `starts` and `ends` say whether there is an initial state and a last one to return.
    """
    index, batch, head, piece, values = program_piece(E, H, pieces, BLOCK_VALUE)
    features = tl.arange(0, WIDTH)
    rows = tl.arange(0, CHUNK)
    keys = tl.arange(0, MICRO)
    there = (features < D)[:, None] & (values < E)[None, :]
    x_rows = walk(x, batch, head, rows, features, x_b, x_h, x_r, x_c, ALIGNED)
    y_rows = walk(y, batch, head, keys, features, y_b, y_h, y_r, y_c, ALIGNED)
    z_rows = walk(z, batch, head, keys, values, z_b, z_h, z_r, z_c, ALIGNED)
    out_plane = output_plane(out, index, N, E, ALIGNED)
    state = state_before(
        sums, initial, index, batch, head, piece, pieces, features, values, D, E, sums_r, sums_c,
        initial_b, initial_h, initial_r, initial_c, starts, there,
    )  # fmt: skip

    first = first_row(piece, pieces, piece_rows, direction)
    chunks = tl.cdiv(tl.minimum(piece_rows, N - first), CHUNK)
    of_features, of_values = columns_within(features, D, ALIGNED), columns_within(values, E, ALIGNED)
    for chunk in range(0, chunks):
        start = first + tl.where(direction > 0, chunk, chunks - 1 - chunk) * CHUNK
        existing = (start + rows < N)[:, None]
        x_tile = load_step(x_rows, start, existing & of_features, ALIGNED)
        before, power = operand(state, x_tile)
        out_tile = tl.zeros([CHUNK, BLOCK_VALUE], tl.float32)
        for micro in range(0, CHUNK, MICRO):
            present = (start + micro + keys < N)[:, None]
            y_tile = load_step(y_rows, start + micro, present & of_features, ALIGNED)
            z_tile = load_step(z_rows, start + micro, present & of_values, ALIGNED)
            scores = masked_scores(x_tile, y_tile, rows, micro + keys, direction)
            out_tile = times_values(scores, z_tile, out_tile)
            state = tl.dot(tl.trans(y_tile), z_tile, acc=state, input_precision="ieee")
        out_tile = times_state(x_tile, before, power, out_tile)
        store_rows(out_plane, out_tile, start, rows, values, E, existing & of_values, ALIGNED)
    if (piece == pieces - 1) & (ends != 0):
        store_state(last, index.to(tl.int64), state, features, values, D, E)


def sum_pieces(problem: Problem, y: torch.Tensor, z: torch.Tensor, direction: int = 1) -> torch.Tensor | None:
    """Return y^T z over each piece but the last, [B, H, pieces - 1, D, E] in float32; None for a single piece.

    y is [B, H, N, D] and z [B, H, N, E], any strides; direction is 1, or -1 where the first piece is the last in N.
    """
    if problem.pieces == 1:
        return None
    features, values = y.shape[3], z.shape[3]
    sums = y.new_empty((*y.shape[:2], problem.pieces - 1, features, values), dtype=torch.float32)
    launch(
        sums_kernel, problem, (y, z), (sums,), (),
        features=features, values=values, direction=direction, programs=problem.pieces - 1,
    )  # fmt: skip
    return sums


def scan(
    problem: Problem,
    x: torch.Tensor,
    y: torch.Tensor,
    z: torch.Tensor,
    *,
    initial: torch.Tensor | None,
    sums: torch.Tensor | None,
    direction: int = 1,
    ends: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return out [B, H, N, E] in the dtype of x and, where `ends`, the state [B, H, D, E] after the last row, float32.

    x and y are [B, H, N, D], z is [B, H, N, E], initial [B, H, D, E], any strides; sums is what `sum_pieces` gave for y
    and z, or what it gave for z and y, transposed.
    """
    features, values = x.shape[3], z.shape[3]
    out = x.new_empty((*x.shape[:3], values))
    last = x.new_empty((*x.shape[:2], features, values), dtype=torch.float32) if ends else None
    strides = (*state_strides(initial), *(sums.stride()[3:] if sums is not None else (0, 0)))
    launch(
        scan_kernel, problem, (x, y, z), (initial, sums, out, last), strides, (int(initial is not None), int(ends)),
        features=features, values=values, direction=direction, programs=problem.pieces, MICRO=problem.blocks.micro,
    )  # fmt: skip
    return out, last


def state_strides(state: torch.Tensor | None) -> tuple[int, ...]:
    """Return the strides of a state [B, H, D, E], zeros where there is none."""
    return (0, 0, 0, 0) if state is None else state.stride()
