"""The scan that forward and VJP are made of: out_i = x_i S0 + sum over j <= i of (x_i . y_j) z_j.

Forward is scan(q, k, v); dq = scan(g, v, k) from the transposed state; backwards in time, dk = scan(v, g, q) and
dv = scan(k, q, g) (gradients.py). A sequence is cut into pieces. A first kernel sums y^T z over each piece, a second
walks over each piece from the state of those before it; with one piece there is no first kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tiles import columns_within, dot, output_plane
from .guardrails import Problem
from .launch import UNSPECIALISED, launch, strides_of
from .tiles import (
    chunk_row,
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
    H, N, D, E, piece_rows, pieces, direction,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum y^T z [WIDTH, BLOCK_VALUE] over one piece of one head, in float32; the last piece has none after it.

    It ends where the scan of these rows begins: what it read last is then still in a cache.
    """
    index, batch, head, piece, column = program_piece(tl.cdiv(E, BLOCK_VALUE), H, pieces - 1)
    values = column * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    features = tl.arange(0, WIDTH)
    rows = tl.arange(0, CHUNK)
    y_rows = walk((y, y_b, y_h, y_r, y_c), batch, head, rows, features, ALIGNED)
    z_rows = walk((z, z_b, z_h, z_r, z_c), batch, head, rows, values, ALIGNED)
    first = first_row(piece, pieces, piece_rows, direction)
    chunks = tl.cdiv(tl.minimum(piece_rows, N - first), CHUNK)
    of_features, of_values = columns_within(features, D, ALIGNED), columns_within(values, E, ALIGNED)
    state = tl.zeros([WIDTH, BLOCK_VALUE], tl.float32)
    for chunk in range(0, chunks):
        start = chunk_row(first, chunk, chunks, -direction, CHUNK)
        existing = (start + rows < N)[:, None]
        y_tile = load_step(y_rows, start, existing & of_features, ALIGNED)
        z_tile = load_step(z_rows, start, existing & of_values, ALIGNED)
        state = dot(tl.trans(y_tile), z_tile, PRECISION, tl.float32, acc=state)
    store_state(sums, index.to(tl.int64) * (pieces - 1) + piece, state, features, values, D, E, True)


@triton.jit
def scan_piece(
    x, y, z, initial, sums, out, last, index, batch, head, piece, column,
    N, D, E, piece_rows, pieces, direction, starts, ends,
    CHUNK: tl.constexpr, MICRO: tl.constexpr, WIDTH: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute out [piece_rows, BLOCK_VALUE] of one piece of one head; the last piece writes the state after it.

    x, y, z and initial are (pointer, four strides), sums is as `state_before` takes it.

    Rounded to the dtype of x: scores and the state before a chunk, as operands of their dots, and out, once. The state
    and all sums are float32. `starts` and `ends` say whether there is an initial state and a last one to return.
    """
    values = column * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    features = tl.arange(0, WIDTH)
    rows = tl.arange(0, CHUNK)
    keys = tl.arange(0, MICRO)
    x_rows = walk(x, batch, head, rows, features, ALIGNED)
    y_rows = walk(y, batch, head, keys, features, ALIGNED)
    z_rows = walk(z, batch, head, keys, values, ALIGNED)
    out_plane = output_plane(out, index, N, E, ALIGNED)
    state = state_before(initial, sums, index, batch, head, piece, pieces, features, values, D, E, starts)

    first = first_row(piece, pieces, piece_rows, direction)
    chunks = tl.cdiv(tl.minimum(piece_rows, N - first), CHUNK)
    of_features, of_values = columns_within(features, D, ALIGNED), columns_within(values, E, ALIGNED)
    for chunk in range(0, chunks):
        start = chunk_row(first, chunk, chunks, direction, CHUNK)
        existing = (start + rows < N)[:, None]
        x_tile = load_step(x_rows, start, existing & of_features, ALIGNED)
        before, power = operand(state, x_tile)
        out_tile = tl.zeros([CHUNK, BLOCK_VALUE], tl.float32)
        for micro in range(0, CHUNK, MICRO):
            present = (start + micro + keys < N)[:, None]
            y_tile = load_step(y_rows, start + micro, present & of_features, ALIGNED)
            z_tile = load_step(z_rows, start + micro, present & of_values, ALIGNED)
            scores = masked_scores(x_tile, y_tile, rows, micro + keys, direction, PRECISION)
            out_tile = times_values(scores, z_tile, out_tile, PRECISION)
            state = dot(tl.trans(y_tile), z_tile, PRECISION, tl.float32, acc=state)
        out_tile = times_state(x_tile, before, power, out_tile, PRECISION)
        store_rows(out_plane, out_tile, start, rows, values, E, existing & of_values, ALIGNED)
    store_state(last, index.to(tl.int64), state, features, values, D, E, (piece == pieces - 1) & (ends != 0))


@triton.jit(**UNSPECIALISED)
def scan_kernel(
    x, y, z, initial, sums, out, last,
    x_b, x_h, x_r, x_c, y_b, y_h, y_r, y_c, z_b, z_h, z_r, z_c, initial_b, initial_h, initial_r, initial_c,
    H, N, D, E, piece_rows, pieces, starts, ends,
    CHUNK: tl.constexpr, MICRO: tl.constexpr, WIDTH: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute `scan_piece` of x, y and z, forwards in time, for a block of columns of one piece of one head."""
    index, batch, head, piece, column = program_piece(tl.cdiv(E, BLOCK_VALUE), H, pieces)
    scan_piece(
        (x, x_b, x_h, x_r, x_c), (y, y_b, y_h, y_r, y_c), (z, z_b, z_h, z_r, z_c),
        (initial, initial_b, initial_h, initial_r, initial_c), (sums, E, 1), out, last,
        index, batch, head, piece, column, N, D, E, piece_rows, pieces, 1, starts, ends,
        CHUNK, MICRO, WIDTH, BLOCK_VALUE, ALIGNED, PRECISION,
    )  # fmt: skip


def sum_pieces(problem: Problem, y: torch.Tensor, z: torch.Tensor, direction: int = 1) -> torch.Tensor | None:
    """Return y^T z over each piece but the last, [B, H, pieces - 1, D, E] in float32; None for a single piece.

    y is [B, H, N, D] and z [B, H, N, E], any strides; direction is 1, or -1 where the first piece is the last in N.
    """
    if problem.pieces == 1:
        return None
    features, values = y.shape[3], z.shape[3]
    sums = y.new_empty((*y.shape[:2], problem.pieces - 1, features, values), dtype=torch.float32)
    launch(
        sums_kernel, problem, "sums", (y, z), (sums,), flags=(direction,),
        features=features, widths=(features, values), columns=(values,), pieces=problem.pieces - 1,
    )  # fmt: skip
    return sums


def scan(
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    initial: torch.Tensor | None,
    sums: torch.Tensor | None,
    ends: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return o [B, H, N, Dv] in the dtype of q and, where `ends`, the state [B, H, D, Dv] after the last row, float32.

    q and k are [B, H, N, D], v is [B, H, N, Dv], initial [B, H, D, Dv], any strides; sums is what `sum_pieces` gave for
    k and v.
    """
    features, values = q.shape[3], v.shape[3]
    out = q.new_empty((*q.shape[:3], values))
    last = q.new_empty((*q.shape[:2], features, values), dtype=torch.float32) if ends else None
    launch(
        scan_kernel, problem, "scan", (q, k, v), (initial, sums, out, last), strides_of(initial),
        (int(initial is not None), int(ends)),
        features=features, widths=(features, values), columns=(values,), pieces=problem.pieces,
    )  # fmt: skip
    return out, last
