"""The one place that launches a kernel: grid, blocks, device, alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton

from ..blocks import capability_of, interpreted
from ..launching import launching, may_fuse
from .blocks import BLOCKS, Blocks, few_enough_warps, in_one_stage, of_part, padded, programs_of_head, value_columns
from .guardrails import Problem

STATES = (
    "initial", "tinitial", "dstate", "tdstate", "sums", "tsums", "later", "tlater",
    "out", "last", "dq", "dk", "dv", "dinitial", "hq", "hk", "hv", "hinitial",
)  # fmt: skip
OUTPUTS = ("out", "dq", "dk", "dv", "hq", "hk", "hv")
ROWS = ("x", "y", "z", "tx", "ty", "tz", "q", "k", "v", "g", "tq", "tk", "tv", "tg")
STRIDES = tuple(
    f"{name}_{axis}" for name in (*ROWS, "initial", "tinitial", "dstate", "tdstate") for axis in "bhrc"
)  # fmt: skip
SCALARS = (
    "H", "N", "D", "E", "piece_rows", "pieces", "direction", "starts", "later_starts", "ends", "of_q", "of_k", "of_v",
)  # fmt: skip


UNSPECIALISED: dict[str, list[str]] = {
    "do_not_specialize": [*STRIDES, *SCALARS],
    "do_not_specialize_on_alignment": [*ROWS, *STATES],
}
"""Options of triton.jit by which one compiled kernel serves every dim, stride and pointer.

Triton would compile anew for each pattern of integers equal to 1 or divisible by 16 and of aligned pointers. Here the
constant ALIGNED alone says so, of all rows at once.
"""


def launch(
    kernel: Any,
    problem: Problem,
    part: str,
    rows: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor | None],
    strides: Sequence[int] = (),
    flags: Sequence[int] = (),
    *,
    features: int,
    widths: tuple[int, int],
    columns: Sequence[int],
    pieces: int,
) -> None:
    """Launch a kernel with one program for each block of columns of each piece of each head.

    Args:
        kernel: takes rows, others, the strides of rows, strides, SCALARS up to `pieces`, flags, constants.
        problem: what `guardrails.check` returned.
        part: the pass, one of `tuned.PARTS`.
        rows: tensors [B, H, N, .], any strides.
        others: states, float32, and outputs; None where a flag or the number of pieces says that it is not read.
        strides: of those of the others that have any.
        flags: integers each.
        features: columns of the tiles whose products are scores.
        widths: D and E of this launch.
        columns: of the result of each scan that the launch has; of several, their blocks are flags of the kernel too.
        pieces: how many pieces of a head have programs.

    Raises:
        ValueError: where the blocks need more shared memory or registers than the GPU has.
    """
    widest = max(columns)
    blocks = _blocks(problem, part, features, widest)
    block_value = value_columns(problem.blocks if interpreted() else blocks, widest)
    counts = [triton.cdiv(each, block_value) for each in columns]
    absent = rows[0].new_empty(1, dtype=torch.float32) if None in others else None
    grid = problem.batch * problem.heads * pieces * sum(counts)
    micro = {"MICRO": blocks.micro} if "MICRO" in kernel.arg_names else {}
    with launching(kernel, problem.device, problem.dtype, blocks, f"D = {features}, Dv = {widest}"):
        kernel[(grid,)](
            *rows,
            *(absent if each is None else each for each in others),
            *(stride for each in rows for stride in each.stride()),
            *strides,
            problem.heads,
            problem.rows,
            *widths,
            problem.piece_rows,
            problem.pieces,
            *flags,
            *(counts if len(counts) > 1 else ()),
            CHUNK=blocks.chunk,
            WIDTH=padded(features),
            BLOCK_VALUE=block_value,
            ALIGNED=specialised(problem.blocks, problem.forced) and _aligned(rows, blocks.chunk),
            PRECISION=problem.precision,
            num_warps=blocks.num_warps,
            num_stages=blocks.num_stages,
            enable_fp_fusion=may_fuse(True, problem.precision),
            **micro,
        )


def strides_of(state: torch.Tensor | None) -> tuple[int, ...]:
    """Return the strides of a state [B, H, D, E], zeros where there is none."""
    return (0, 0, 0, 0) if state is None else state.stride()


def specialised(blocks: Blocks, forced: bool) -> bool:
    """Return whether aligned rows have a compilation of their own: not where a shipped configuration is forced.

    One that is forced is there to be compared with; sizes of the caller's own are there for speed.
    """
    return not forced or interpreted() or blocks not in BLOCKS.values()


def _blocks(problem: Problem, part: str, features: int, columns: int) -> Blocks:
    if interpreted():
        return in_one_stage(problem.blocks, part)
    if problem.forced:
        return in_one_stage(few_enough_warps(problem.blocks, problem.dots), part)
    capability = capability_of(problem.device)
    of_head = programs_of_head(problem.blocks, columns, features)
    programs = problem.batch * problem.heads * problem.pieces * of_head
    return of_part(problem.blocks, part, problem.dots, features, programs, capability)


def _aligned(rows: Sequence[torch.Tensor], chunk: int) -> bool:
    """Return whether rows are contiguous, of 16 n elements, start at multiples of 16, and a chunk fits 32 bits."""
    return all(
        tensor.shape[3] % 16 == 0
        and tensor.data_ptr() % 16 == 0
        and tensor.stride(3) == 1
        and all(stride % 16 == 0 for stride in tensor.stride()[:3])
        and tensor.stride(2) * chunk < 2**31
        for tensor in rows
    )
