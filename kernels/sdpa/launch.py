"""The one place that launches a kernel: grid, blocks, device, strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from ..blocks import Blocks, capability_of
from ..launching import launching, may_fuse, score_units
from ..splitting import as_loaded
from ..tiles import rows_aligned
from .blocks import choose
from .guardrails import Problem

FLOATS = ("scale", "rate")
SCALARS = ("H", "T", "M", "D", "DV", "causal_offset", "padded")


def unspecialised(*planes: str, rows: Sequence[str] = (), contiguous: Sequence[str]) -> dict[str, list[str]]:
    """Return options of triton.jit by which one compiled kernel serves every dim, stride and pointer.

    Triton would compile anew for each pattern of integers equal to 1 or divisible by 16 and of aligned pointers. Here
    the constant ALIGNED alone says so, of all tensors at once.

    Args:
        planes: tensors of rank 4, whose strides are called NAME_b, NAME_h, NAME_r, NAME_c (batch, head, row, column).
        rows: tensors [B, H, T], whose strides are called NAME_b, NAME_h, NAME_r.
        contiguous: the other tensors.
    """
    strides = [f"{name}_{axis}" for name in planes for axis in "bhrc"]
    strides += [f"{name}_{axis}" for name in rows for axis in "bhr"]
    return {
        "do_not_specialize": [*strides, *SCALARS],
        "do_not_specialize_on_alignment": [*planes, *rows, *contiguous],
    }


def aligned(problem: Problem, planes: Sequence[torch.Tensor]) -> bool:
    """Return whether the rows of every plane are contiguous, of 16 n elements, and start at multiples of 16.

    Pointers are multiples of 16 bytes, strides of 16 elements: then loads and stores are vectors. Outputs are new, so
    that PyTorch's allocator aligns them.
    """
    return problem.features % 16 == 0 and problem.value_features % 16 == 0 and all(map(rows_aligned, planes))


def automatic(problem: Problem, part: str, width: int) -> Blocks:
    """Return the blocks of a pass of a problem that forces none."""
    asked = part, problem.dtype, problem.precision, width, problem.queries, problem.keys
    return choose(*asked, capability_of(problem.device))


def launch(
    kernel: Any,
    problem: Problem,
    *,
    planes: Sequence[torch.Tensor],
    rows: Sequence[torch.Tensor] = (),
    contiguous: Sequence[torch.Tensor | None],
    over: str,
    part: str,
    **flags: bool,
) -> None:
    """Launch a kernel with one program for each tile of queries or of keys of each head.

    Args:
        kernel: takes planes, rows, contiguous, the strides of planes and of rows, SCALARS, scale, rate, constants.
        problem: what `guardrails.check` returned.
        planes: inputs of rank 4, any strides; those that dots take may be parts (`splitting`).
        rows: inputs [B, H, T], any strides.
        contiguous: tensors that this package allocated, contiguous; None where a flag says that there is none.
        over: "query" or "key".
        part: the pass, by which blocks are chosen.
        flags: constants of the kernel.

    Raises:
        ValueError: where the blocks need more shared memory or registers than the GPU has.
    """
    width = problem.width
    blocks = problem.blocks or automatic(problem, part, width)
    tiles = triton.cdiv(problem.queries, blocks.query) if over == "query" else triton.cdiv(problem.keys, blocks.key)
    exact, rate = score_units(problem.scale)
    with launching(kernel, problem.device, problem.dtype, blocks, f"D padded to {width}"):
        kernel[(tiles * problem.batch * problem.heads,)](
            *planes,
            *rows,
            *contiguous,
            *(stride for tensor in (*planes, *rows) for stride in tensor.stride()),
            problem.heads,
            problem.queries,
            problem.keys,
            problem.features,
            problem.value_features,
            problem.causal_offset,
            problem.padded,
            problem.scale,
            rate,
            BLOCK_QUERY=blocks.query,
            BLOCK_KEY=blocks.key,
            WIDTH=width,
            ALIGNED=aligned(problem, planes),
            ACCUMULATE=tl.float64 if problem.dtype == torch.float64 else tl.float32,
            EXACT=exact,
            PRECISION=as_loaded(problem.precision, planes[0].dtype),
            num_warps=blocks.num_warps,
            num_stages=blocks.num_stages,
            enable_fp_fusion=may_fuse(exact, problem.precision),
            **flags,
        )
