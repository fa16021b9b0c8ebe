"""The one place that launches a kernel: grid, blocks, device, alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton

from ..launching import launching
from .blocks import Blocks, padded, specialised, value_columns
from .guardrails import Problem

STATES = ("initial", "tinitial", "sums", "tsums", "out", "last")
ROWS = ("x", "y", "z", "tx", "ty", "tz")
STRIDES = (
    *(f"{name}_{axis}" for name in (*ROWS, "initial", "tinitial") for axis in "bhrc"),
    "sums_r",
    "sums_c",
)
SCALARS = ("H", "N", "D", "E", "direction", "piece_rows", "pieces", "starts", "ends")


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
    rows: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor | None],
    strides: Sequence[int],
    flags: Sequence[int] = (),
    *,
    features: int,
    values: int,
    direction: int,
    programs: int,
    **constants: Any,
) -> None:
    """Launch a kernel with one program for each block of values of each piece of each head.

    Args:
        kernel: takes rows, others, the strides of rows, strides, SCALARS up to `pieces`, flags, constants.
        problem: what `guardrails.check` returned.
        rows: tensors [B, H, N, .], any strides.
        others: states, float32, and outputs; None where a flag or the number of pieces says that it is not read.
        strides: of those of the others that have any.
        flags: 0 or 1 each.
        features: D of this launch: columns of x and y.
        values: E of this launch: columns of z.
        direction: 1, or -1 backwards in time.
        programs: how many pieces of a head have programs.
        constants: of the kernel, besides those that every kernel takes.

    Raises:
        ValueError: where the blocks need more shared memory or registers than the GPU has.
    """
    blocks = problem.blocks
    block_value = value_columns(blocks, values)
    absent = rows[0].new_empty(1, dtype=torch.float32) if None in others else None
    grid = problem.batch * problem.heads * programs * triton.cdiv(values, block_value)
    with launching(kernel, problem.device, problem.dtype, blocks, f"D = {features}, Dv = {values}"):
        kernel[(grid,)](
            *rows,
            *(absent if each is None else each for each in others),
            *(stride for each in rows for stride in each.stride()),
            *strides,
            problem.heads,
            problem.rows,
            features,
            values,
            direction,
            problem.piece_rows,
            problem.pieces,
            *flags,
            CHUNK=blocks.chunk,
            WIDTH=padded(features),
            BLOCK_VALUE=block_value,
            ALIGNED=specialised(blocks, problem.dtype, problem.rows) and _aligned(rows, blocks.chunk),
            num_warps=blocks.num_warps,
            num_stages=stages(kernel, blocks),
            **constants,
        )


def stages(kernel: Any, blocks: Blocks) -> int:
    """Return how many stages a kernel's loads are pipelined in: one where it loads tangents too."""
    return 1 if "ty" in kernel.arg_names else blocks.num_stages


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
