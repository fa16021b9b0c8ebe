"""The gradients of q, k and v: three scans in one launch.

dq = scan(g, v, k) forwards in time, from the transposed states of forward; backwards in time, dk = scan(v, g, q) and
dv = scan(k, q, g), from the sums of q^T g. What differs is which tensor is which, so a program chooses its pointers and
strides, and the code is one. dk and dv of the same rows are neighbours: what one reads, the other finds in a cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl

from .blocks import padded
from .guardrails import Problem
from .launch import UNSPECIALISED, launch, strides_of
from .scan import scan_piece
from .tiles import one_of, program_piece, tensor_of


@triton.jit(**UNSPECIALISED)
def gradients_kernel(
    q, k, v, g, initial, dstate, sums, later, dq, dk, dv, dinitial,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c, g_b, g_h, g_r, g_c,
    initial_b, initial_h, initial_r, initial_c, dstate_b, dstate_h, dstate_r, dstate_c,
    H, N, D, E, piece_rows, pieces, starts, later_starts, ends, of_q, of_k, of_v,
    CHUNK: tl.constexpr, MICRO: tl.constexpr, WIDTH: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute `scan_piece` of one gradient for a block of columns of one piece of one head.

    Of the programs of a piece `of_q` have dq, then `of_k` dk and `of_v` dv, 0 where a gradient is not needed.
    """
    index, batch, head, piece, column = program_piece(of_q + of_k + of_v, H, pieces)
    number = (column >= of_q).to(tl.int32) + (column >= of_q + of_k).to(tl.int32)
    column -= one_of(number, 0, of_q, of_q + of_k)
    of_q_rows, of_k_rows = (q, q_b, q_h, q_r, q_c), (k, k_b, k_h, k_r, k_c)
    of_v_rows, of_g_rows = (v, v_b, v_h, v_r, v_c), (g, g_b, g_h, g_r, g_c)
    turned = (dstate, dstate_b, dstate_h, dstate_c, dstate_r)
    scan_piece(
        tensor_of(number, of_g_rows, of_v_rows, of_k_rows),
        tensor_of(number, of_v_rows, of_g_rows, of_q_rows),
        tensor_of(number, of_k_rows, of_q_rows, of_g_rows),
        tensor_of(
            number, (initial, initial_b, initial_h, initial_c, initial_r), turned,
            (dstate, dstate_b, dstate_h, dstate_r, dstate_c),
        ),
        (tl.where(number == 0, sums, later), one_of(number, 1, 1, E), one_of(number, E, E, 1)),
        one_of(number, dq, dk, dv), dinitial,
        index, batch, head, piece, column,
        N, one_of(number, E, E, D), one_of(number, D, D, E), piece_rows, pieces, one_of(number, 1, -1, -1),
        tl.where(number == 0, starts, later_starts), one_of(number, 0, 0, ends),
        CHUNK, MICRO, WIDTH, BLOCK_VALUE, ALIGNED, PRECISION,
    )  # fmt: skip


def gradients(
    problem: Problem,
    needs: Sequence[bool],
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None],
    g: torch.Tensor,
    dstate: torch.Tensor | None,
    sums: torch.Tensor | None,
    later: torch.Tensor | None,
) -> list[torch.Tensor | None]:
    """Return dq, dk [B, H, N, D], dv [B, H, N, Dv] and the gradient [B, H, D, Dv] of the initial state, float32.

    Args:
        problem: what `guardrails.check` returned.
        needs: which of the four are needed; the others are None.
        given: q, k [B, H, N, D], v [B, H, N, Dv] and the initial state [B, H, D, Dv] or None, any strides.
        g: cotangent of o [B, H, N, Dv].
        dstate: cotangent of the last state [B, H, D, Dv] or None.
        sums: of `scan.sum_pieces` for k and v.
        later: of `scan.sum_pieces` for q and g, backwards in time; None where dq alone is needed.
    """
    *rows, initial = given
    found, standing = outputs(needs, given)
    flags = int(initial is not None), int(dstate is not None), int(needs[3])
    for features, columns in together(problem, needs):
        launch(
            gradients_kernel, problem, "gradients", (*rows, g), (initial, dstate, sums, later, *standing),
            (*strides_of(initial), *strides_of(dstate)), flags,
            features=features, widths=(problem.features, problem.value_features), columns=columns,
            pieces=problem.pieces,
        )  # fmt: skip
    return found


def outputs(
    needs: Sequence[bool], given: Sequence[torch.Tensor | None]
) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
    """Return new tensors for the gradients of q, k, v and the initial state, and what a launch takes for them.

    A gradient that is not needed is None; another one stands for it in a launch, which chooses among pointers of one
    type. The programs that compute the gradient of the initial state compute that of v.
    """
    q, k, v = (each for each in given[:3] if each is not None)
    shapes = q.shape, k.shape, v.shape
    asked = needs[0], needs[1], needs[2] or needs[3]
    found = [q.new_empty(shape) if need else None for need, shape in zip(asked, shapes, strict=True)]
    one = next((each for each in found if each is not None), None)
    state = q.new_empty((*q.shape[:2], q.shape[3], v.shape[3]), dtype=torch.float32) if needs[3] else None
    return [*found, state], [*(one if each is None else each for each in found), state]


def together(problem: Problem, needs: Sequence[bool]) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Yield, for each launch, the features of its scans and the columns of (dq, dk, dv), 0 where it has not that one.

    Scans whose tiles are equally wide share a launch. dv, whose columns are those of v, has the features of q; it is
    computed for the gradient of the initial state too.
    """
    features, values = problem.features, problem.value_features
    of_keys = (features * needs[0], features * needs[1], 0)
    of_values = (0, 0, values * (needs[2] or needs[3]))
    if padded(features) == padded(values):
        of_keys, of_values = (*of_keys[:2], of_values[2]), (0, 0, 0)
    for width, columns in ((values, of_keys), (features, of_values)):
        if any(columns):
            yield width, columns
