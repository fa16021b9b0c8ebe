"""The tangent of a scan along (x', y', z', S0'), in one pass: JVP and exact HVP (hessian.py) are made of it.

out'_i = x'_i S + x_i S' + sum over j <= i in the chunk of (x'_i . y_j + x_i . y'_j) z_j + (x_i . y_j) z'_j, with
S' = S0' + sum y'^T z + y^T z' before the chunk. A scan is linear in each of x, y and z, so this is exact; and it is
rounded to the dtype once, where three scans and their sum would be rounded five times.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..absent import complete
from ..tiles import columns_within, dot, output_plane
from .guardrails import Problem
from .launch import UNSPECIALISED, launch, strides_of
from .tiles import (
    chunk_row,
    earlier,
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
def tangent_sums_kernel(
    y, z, ty, tz, tsums,
    y_b, y_h, y_r, y_c, z_b, z_h, z_r, z_c, ty_b, ty_h, ty_r, ty_c, tz_b, tz_h, tz_r, tz_c,
    H, N, D, E, piece_rows, pieces, direction,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum y'^T z + y^T z' [WIDTH, BLOCK_VALUE] over one piece of one head, in float32, as `scan.sums_kernel` does."""
    index, batch, head, piece, column = program_piece(tl.cdiv(E, BLOCK_VALUE), H, pieces - 1)
    values = column * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    features = tl.arange(0, WIDTH)
    rows = tl.arange(0, CHUNK)
    y_rows = walk((y, y_b, y_h, y_r, y_c), batch, head, rows, features, ALIGNED)
    z_rows = walk((z, z_b, z_h, z_r, z_c), batch, head, rows, values, ALIGNED)
    ty_rows = walk((ty, ty_b, ty_h, ty_r, ty_c), batch, head, rows, features, ALIGNED)
    tz_rows = walk((tz, tz_b, tz_h, tz_r, tz_c), batch, head, rows, values, ALIGNED)
    first = first_row(piece, pieces, piece_rows, direction)
    chunks = tl.cdiv(tl.minimum(piece_rows, N - first), CHUNK)
    of_features, of_values = columns_within(features, D, ALIGNED), columns_within(values, E, ALIGNED)
    moved = tl.zeros([WIDTH, BLOCK_VALUE], tl.float32)
    for chunk in range(0, chunks):
        start = chunk_row(first, chunk, chunks, -direction, CHUNK)
        existing = (start + rows < N)[:, None]
        y_tile = load_step(y_rows, start, existing & of_features, ALIGNED)
        z_tile = load_step(z_rows, start, existing & of_values, ALIGNED)
        ty_tile = load_step(ty_rows, start, existing & of_features, ALIGNED)
        tz_tile = load_step(tz_rows, start, existing & of_values, ALIGNED)
        moved = dot(tl.trans(ty_tile), z_tile, PRECISION, tl.float32, acc=moved)
        moved = dot(tl.trans(y_tile), tz_tile, PRECISION, tl.float32, acc=moved)
    store_state(tsums, index.to(tl.int64) * (pieces - 1) + piece, moved, features, values, D, E, True)


@triton.jit
def tangent_piece(
    x, y, z, tx, ty, tz, initial, tinitial, sums, tsums, out, last, index, batch, head, piece, column,
    N, D, E, piece_rows, pieces, direction, starts, ends,
    CHUNK: tl.constexpr, MICRO: tl.constexpr, WIDTH: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the tangent [piece_rows, BLOCK_VALUE] of out for one piece of one head; the last piece, of the state.

    Tensors are as those of `scan.scan_piece`. Rounded to the dtype of x: scores, states before a chunk and their
    tangents, as operands of their dots, and the result, once. States and all sums are float32.
    """
    values = column * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    features = tl.arange(0, WIDTH)
    rows = tl.arange(0, CHUNK)
    keys = tl.arange(0, MICRO)
    x_rows = walk(x, batch, head, rows, features, ALIGNED)
    y_rows = walk(y, batch, head, keys, features, ALIGNED)
    z_rows = walk(z, batch, head, keys, values, ALIGNED)
    tx_rows = walk(tx, batch, head, rows, features, ALIGNED)
    ty_rows = walk(ty, batch, head, keys, features, ALIGNED)
    tz_rows = walk(tz, batch, head, keys, values, ALIGNED)
    out_plane = output_plane(out, index, N, E, ALIGNED)
    state = state_before(initial, sums, index, batch, head, piece, pieces, features, values, D, E, starts)
    moved = state_before(tinitial, tsums, index, batch, head, piece, pieces, features, values, D, E, starts)

    first = first_row(piece, pieces, piece_rows, direction)
    chunks = tl.cdiv(tl.minimum(piece_rows, N - first), CHUNK)
    of_features, of_values = columns_within(features, D, ALIGNED), columns_within(values, E, ALIGNED)
    for chunk in range(0, chunks):
        start = chunk_row(first, chunk, chunks, direction, CHUNK)
        existing = (start + rows < N)[:, None]
        x_tile = load_step(x_rows, start, existing & of_features, ALIGNED)
        tx_tile = load_step(tx_rows, start, existing & of_features, ALIGNED)
        before, power = operand(state, x_tile)
        tbefore, tpower = operand(moved, x_tile)
        out_tile = tl.zeros([CHUNK, BLOCK_VALUE], tl.float32)
        for micro in range(0, CHUNK, MICRO):
            present = (start + micro + keys < N)[:, None]
            y_tile = load_step(y_rows, start + micro, present & of_features, ALIGNED)
            ty_tile = load_step(ty_rows, start + micro, present & of_features, ALIGNED)
            z_tile = load_step(z_rows, start + micro, present & of_values, ALIGNED)
            tz_tile = load_step(tz_rows, start + micro, present & of_values, ALIGNED)
            tscores = dot(tx_tile, tl.trans(y_tile), PRECISION, tl.float32)
            tscores = dot(x_tile, tl.trans(ty_tile), PRECISION, tl.float32, acc=tscores)
            tscores = earlier(tscores, rows, micro + keys, direction)
            out_tile = times_values(tscores, z_tile, out_tile, PRECISION)
            scores = masked_scores(x_tile, y_tile, rows, micro + keys, direction, PRECISION)
            out_tile = times_values(scores, tz_tile, out_tile, PRECISION)
            state = dot(tl.trans(y_tile), z_tile, PRECISION, tl.float32, acc=state)
            moved = dot(tl.trans(ty_tile), z_tile, PRECISION, tl.float32, acc=moved)
            moved = dot(tl.trans(y_tile), tz_tile, PRECISION, tl.float32, acc=moved)
        out_tile = times_state(tx_tile, before, power, out_tile, PRECISION)
        out_tile = times_state(x_tile, tbefore, tpower, out_tile, PRECISION)
        store_rows(out_plane, out_tile, start, rows, values, E, existing & of_values, ALIGNED)
    store_state(last, index.to(tl.int64), moved, features, values, D, E, (piece == pieces - 1) & (ends != 0))


@triton.jit(**UNSPECIALISED)
def tangent_kernel(
    x, y, z, tx, ty, tz, initial, tinitial, sums, tsums, out, last,
    x_b, x_h, x_r, x_c, y_b, y_h, y_r, y_c, z_b, z_h, z_r, z_c,
    tx_b, tx_h, tx_r, tx_c, ty_b, ty_h, ty_r, ty_c, tz_b, tz_h, tz_r, tz_c,
    initial_b, initial_h, initial_r, initial_c, tinitial_b, tinitial_h, tinitial_r, tinitial_c,
    H, N, D, E, piece_rows, pieces, starts, ends,
    CHUNK: tl.constexpr, MICRO: tl.constexpr, WIDTH: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute `tangent_piece` of x, y and z, forwards in time, for a block of columns of one piece of one head."""
    index, batch, head, piece, column = program_piece(tl.cdiv(E, BLOCK_VALUE), H, pieces)
    tangent_piece(
        (x, x_b, x_h, x_r, x_c), (y, y_b, y_h, y_r, y_c), (z, z_b, z_h, z_r, z_c),
        (tx, tx_b, tx_h, tx_r, tx_c), (ty, ty_b, ty_h, ty_r, ty_c), (tz, tz_b, tz_h, tz_r, tz_c),
        (initial, initial_b, initial_h, initial_r, initial_c),
        (tinitial, tinitial_b, tinitial_h, tinitial_r, tinitial_c), (sums, E, 1), (tsums, E, 1), out, last,
        index, batch, head, piece, column, N, D, E, piece_rows, pieces, 1, starts, ends,
        CHUNK, MICRO, WIDTH, BLOCK_VALUE, ALIGNED, PRECISION,
    )  # fmt: skip


def tangent_sums(
    problem: Problem,
    y: torch.Tensor,
    z: torch.Tensor,
    ty: torch.Tensor | None,
    tz: torch.Tensor | None,
    direction: int = 1,
) -> torch.Tensor | None:
    """Return y'^T z + y^T z' over each piece but the last, as `scan.sum_pieces` does; None is a tangent of zero."""
    if problem.pieces == 1:
        return None
    ty, tz = complete((ty, tz), (y, z))
    features, values = y.shape[3], z.shape[3]
    tsums = y.new_empty((*y.shape[:2], problem.pieces - 1, features, values), dtype=torch.float32)
    launch(
        tangent_sums_kernel, problem, "tangent sums", (y, z, ty, tz), (tsums,), flags=(direction,),
        features=features, widths=(features, values), columns=(values,), pieces=problem.pieces - 1,
    )  # fmt: skip
    return tsums


def tangent(
    problem: Problem,
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None],
    moved: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
    *,
    sums: torch.Tensor | None,
    tsums: torch.Tensor | None,
    ends: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the tangents of what `scan.scan` returns.

    Args:
        problem: what `guardrails.check` returned.
        given: q, k [B, H, N, D], v [B, H, N, Dv] and the initial state [B, H, D, Dv] or None, any strides.
        moved: their tangents; None is zero.
        sums: of `scan.sum_pieces` for k and v.
        tsums: of `tangent_sums` for k and v.
        ends: whether the tangent of the last state is expected.
    """
    *rows, initial = given
    *trows, tinitial = complete(moved, given)
    q, v = given[0], given[2]
    features, values = q.shape[3], v.shape[3]
    out = q.new_empty((*q.shape[:3], values))
    last = q.new_empty((*q.shape[:2], features, values), dtype=torch.float32) if ends else None
    launch(
        tangent_kernel, problem, "tangent", (*rows, *trows), (initial, tinitial, sums, tsums, out, last),
        (*strides_of(initial), *strides_of(tinitial)), (int(initial is not None), int(ends)),
        features=features, widths=(features, values), columns=(values,), pieces=problem.pieces,
    )  # fmt: skip
    return out, last
