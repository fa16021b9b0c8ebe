"""The one place that launches a kernel: grid, blocks, device, alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..blocks import capability_of, interpreted
from ..launching import launching
from ..tiles import rows_aligned
from .blocks import BLOCKS, Blocks, feature_columns, forced_on, of_part, padded
from .guardrails import Problem

ROWS = ("q", "k", "v", "do")
SERIES = ("g", "beta")
STATES = ("initial", "dstate")
OUTPUTS = ("o", "dq", "dk", "dv", "dg", "dbeta", "last", "dinitial")
STRIDES = tuple(
    f"{name}_{axis}"
    for names, axes in ((ROWS, "bhrc"), (SERIES, "bhr"), (STATES, "bhprc"))
    for name in names
    for axis in axes
)  # fmt: skip
SCALARS = ("H", "T", "D", "E", "chunks", "piece_chunks", "pieces", "scale", "starts", "wanted")


UNSPECIALISED: dict[str, list[str]] = {
    "do_not_specialize": [*STRIDES, *SCALARS],
    "do_not_specialize_on_alignment": [*ROWS, *SERIES, *STATES, *OUTPUTS],
}
"""Options of triton.jit by which one compiled kernel serves every dim, stride and pointer of a caller.

Triton would compile anew for each pattern of integers equal to 1 or divisible by 16 and of aligned pointers. Here the
constant ALIGNED alone says so, of all rows at once. What one kernel keeps for another is always aligned.
"""


def launch(
    kernel: Any,
    problem: Problem,
    part: str,
    rows: Sequence[torch.Tensor],
    series: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor | None],
    scalars: Sequence[float],
    *,
    states: Sequence[torch.Tensor | None] = (),
    programs: int = 1,
    columns: int = 0,
    **constants: bool,
) -> None:
    """Launch a kernel with `programs` of each head, each of them for each block of columns, if it has any.

    Args:
        kernel: takes rows, series, states, others, the strides of the first three, scalars, constants.
        problem: what `guardrails.check` returned.
        part: the pass, one of `tuned.PARTS`.
        rows: tensors [B, H, T, .], any strides.
        series: tensors [B, H, T], any strides.
        others: tensors that are contiguous; None where a flag says that it is not written.
        scalars: those of SCALARS that the kernel has, in its order.
        states: states [B, H, D, Dv] of the caller, any strides, or one of each piece [B, H, pieces, D, Dv]; None where
            a flag says that there is none.
        programs: of each head.
        columns: of the result that is cut into blocks of columns; 0 where none is.
        constants: of the kernel alone.

    Raises:
        ValueError: where the blocks need more shared memory or registers than the GPU has.
    """
    blocks = _blocks(problem, part)
    wide, narrow = padded(problem.value_features), padded(problem.features)
    block_value = min(blocks.value, wide, narrow)
    absent = None
    if any(each is None for each in (*states, *others)):
        absent = torch.empty(1, dtype=torch.float32, device=problem.device)
    known: dict[str, Any] = {
        "CHUNK": blocks.chunk,
        "WIDTH": narrow,
        "VALUES": wide,
        "BLOCK_VALUE": block_value,
        "BLOCK_FEATURE": feature_columns(blocks, problem.dots, narrow, capability_of(problem.device)),
        "ALIGNED": _specialised(problem) and _aligned(problem, rows),
        "PRECISION": problem.precision,
        "SOLVE": solve_of(problem.dots),
    }
    grid = problem.batch * problem.heads * programs * (columns // block_value or 1)
    sizes = f"D = {problem.features}, Dv = {problem.value_features}"
    with launching(kernel, problem.device, problem.dtype, blocks, sizes):
        kernel[(grid,)](
            *rows,
            *series,
            *(absent if each is None else each for each in (*states, *others)),
            *(stride for each in (*rows, *series) for stride in each.stride()),
            *(stride for each in states for stride in _strides(each)),
            *scalars,
            num_warps=blocks.num_warps,
            num_stages=blocks.num_stages,
            **constants,
            **{name: value for name, value in known.items() if name in kernel.arg_names},
        )


def solve_of(dots: str) -> str:
    """Return the precision of the float32 dots that a chunk is inverted by: about that of float32."""
    return "ieee" if dots == "ieee" else "tf32x3"


def _strides(state: torch.Tensor | None) -> tuple[int, ...]:
    """Return the five strides of states of pieces, of which a single one needs none; zeros where there is none."""
    if state is None:
        return (0,) * 5
    strides = state.stride()
    return strides if len(strides) == 5 else (*strides[:2], 0, *strides[2:])


def _specialised(problem: Problem) -> bool:
    """Return whether aligned rows have a compilation of their own: not where a shipped configuration is forced.

    One that is forced is there to be compared with; sizes of the caller's own are there for speed.
    """
    return not problem.forced or interpreted() or problem.blocks not in BLOCKS.values()


def _blocks(problem: Problem, part: str) -> Blocks:
    if interpreted():
        return problem.blocks
    if problem.forced:
        return forced_on(problem.blocks, part, problem.dots)
    widest = max(problem.features, problem.value_features)
    return of_part(problem.blocks, part, problem.dots, widest, capability_of(problem.device))


def _aligned(problem: Problem, rows: Sequence[torch.Tensor]) -> bool:
    """Return whether D and Dv, which results have too, are multiples of 16, and rows contiguous from multiples on."""
    return problem.features % 16 == 0 == problem.value_features % 16 and all(rows_aligned(tensor) for tensor in rows)
