"""The exact HVP: three tangents of scans in one launch, those of the three scans of gradients.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from ..absent import complete
from .gradients import outputs, together
from .guardrails import Problem
from .launch import UNSPECIALISED, launch, strides_of
from .tangents import tangent_piece
from .tiles import one_of, program_piece, tensor_of


@triton.jit(**UNSPECIALISED)
def hessian_kernel(
    q, k, v, g, tq, tk, tv, tg, initial, tinitial, dstate, tdstate, sums, tsums, later, tlater, hq, hk, hv, hinitial,
    q_b, q_h, q_r, q_c, k_b, k_h, k_r, k_c, v_b, v_h, v_r, v_c, g_b, g_h, g_r, g_c,
    tq_b, tq_h, tq_r, tq_c, tk_b, tk_h, tk_r, tk_c, tv_b, tv_h, tv_r, tv_c, tg_b, tg_h, tg_r, tg_c,
    initial_b, initial_h, initial_r, initial_c, tinitial_b, tinitial_h, tinitial_r, tinitial_c,
    dstate_b, dstate_h, dstate_r, dstate_c, tdstate_b, tdstate_h, tdstate_r, tdstate_c,
    H, N, D, E, piece_rows, pieces, starts, later_starts, ends, of_q, of_k, of_v,
    CHUNK: tl.constexpr, MICRO: tl.constexpr, WIDTH: tl.constexpr, BLOCK_VALUE: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute `tangent_piece` of one gradient for a block of columns of one piece of one head.

    Of the programs of a piece `of_q` have hq, then `of_k` hk and `of_v` hv, 0 where a tangent is not needed.
    """
    index, batch, head, piece, column = program_piece(of_q + of_k + of_v, H, pieces)
    number = (column >= of_q).to(tl.int32) + (column >= of_q + of_k).to(tl.int32)
    column -= one_of(number, 0, of_q, of_q + of_k)
    of_q_rows, of_k_rows = (q, q_b, q_h, q_r, q_c), (k, k_b, k_h, k_r, k_c)
    of_v_rows, of_g_rows = (v, v_b, v_h, v_r, v_c), (g, g_b, g_h, g_r, g_c)
    of_tq_rows, of_tk_rows = (tq, tq_b, tq_h, tq_r, tq_c), (tk, tk_b, tk_h, tk_r, tk_c)
    of_tv_rows, of_tg_rows = (tv, tv_b, tv_h, tv_r, tv_c), (tg, tg_b, tg_h, tg_r, tg_c)
    by_feature, by_value = one_of(number, 1, 1, E), one_of(number, E, E, 1)
    tangent_piece(
        tensor_of(number, of_g_rows, of_v_rows, of_k_rows),
        tensor_of(number, of_v_rows, of_g_rows, of_q_rows),
        tensor_of(number, of_k_rows, of_q_rows, of_g_rows),
        tensor_of(number, of_tg_rows, of_tv_rows, of_tk_rows),
        tensor_of(number, of_tv_rows, of_tg_rows, of_tq_rows),
        tensor_of(number, of_tk_rows, of_tq_rows, of_tg_rows),
        tensor_of(
            number, (initial, initial_b, initial_h, initial_c, initial_r),
            (dstate, dstate_b, dstate_h, dstate_c, dstate_r), (dstate, dstate_b, dstate_h, dstate_r, dstate_c),
        ),
        tensor_of(
            number, (tinitial, tinitial_b, tinitial_h, tinitial_c, tinitial_r),
            (tdstate, tdstate_b, tdstate_h, tdstate_c, tdstate_r),
            (tdstate, tdstate_b, tdstate_h, tdstate_r, tdstate_c),
        ),
        (tl.where(number == 0, sums, later), by_feature, by_value),
        (tl.where(number == 0, tsums, tlater), by_feature, by_value),
        one_of(number, hq, hk, hv), hinitial,
        index, batch, head, piece, column,
        N, one_of(number, E, E, D), one_of(number, D, D, E), piece_rows, pieces, one_of(number, 1, -1, -1),
        tl.where(number == 0, starts, later_starts), one_of(number, 0, 0, ends),
        CHUNK, MICRO, WIDTH, BLOCK_VALUE, ALIGNED, PRECISION,
    )  # fmt: skip


def hessian(
    problem: Problem,
    needs: Sequence[bool],
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None],
    moved: Sequence[torch.Tensor | None],
    cotangents: tuple[torch.Tensor, torch.Tensor | None],
    moved_cotangents: tuple[torch.Tensor | None, torch.Tensor | None],
    *,
    sums: tuple[torch.Tensor | None, torch.Tensor | None],
    later: tuple[torch.Tensor | None, torch.Tensor | None],
) -> list[torch.Tensor | None]:
    """Return the tangents of what `gradients.gradients` returns.

    Args:
        problem: what `guardrails.check` returned.
        needs: which of the four are needed; the others are None.
        given: q, k [B, H, N, D], v [B, H, N, Dv] and the initial state [B, H, D, Dv] or None, any strides.
        moved: their tangents; None is zero.
        cotangents: of o [B, H, N, Dv], and of the last state [B, H, D, Dv] or None.
        moved_cotangents: their tangents; None is zero.
        sums: of `scan.sum_pieces` and of `tangents.tangent_sums` for k and v.
        later: the same for q and g, backwards in time; None where hq alone is needed.
    """
    *rows, initial = given
    *trows, tinitial = complete(moved, given)
    (g, dstate), (tg, tdstate) = cotangents, complete(moved_cotangents, cotangents)
    found, standing = outputs(needs, given)
    flags = int(initial is not None), int(dstate is not None), int(needs[3])
    states = initial, tinitial, dstate, tdstate
    for features, columns in together(problem, needs):
        launch(
            hessian_kernel, problem, "hessian", (*rows, g, *trows, tg), (*states, *sums, *later, *standing),
            tuple(stride for state in states for stride in strides_of(state)), flags,
            features=features, widths=(problem.features, problem.value_features), columns=columns,
            pieces=problem.pieces,
        )  # fmt: skip
    return found
