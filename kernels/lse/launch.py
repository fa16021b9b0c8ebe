"""The one place that launches a kernel: grid, blocks, device, strides."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton

from ..launching import launching, may_fuse
from ..splitting import as_loaded, operands
from ..tiles import rows_aligned
from .blocks import WIDEST, padded_features, specialised
from .guardrails import Problem

STRIDES = (
    *(f"{name}_{axis}" for name in "qk" for axis in "bhrc"),
    *(f"g_{axis}" for axis in "bhr"),
    "sinks_h",
    *(f"{name}_{axis}" for name in ("q_ids", "kv_ids") for axis in "br"),
    *(f"{name}_{axis}" for name in ("tq", "tk") for axis in "bhrc"),
    "tsinks_h",
)
FLOATS = ("scale", "softcap", "rate")
SCALARS = ("H", "G", "T", "M", "D", "causal_offset", "padded", "has_sinks", "has_segments")
OVER_KEYS = ("dkv", "hk")
OPERANDS = ("q", "k", "tq", "tk")  # what dots take
INPUTS = ("q", "k", "g", "sinks", "q_ids", "kv_ids", "tq", "tk", "tsinks")


class Tensors(NamedTuple):
    """What a pass reads besides what this package allocated; None where it is absent.

    q [B, H, T, D], k [B, G, M, D], g [B, H, T], sinks [H], q_ids [B, T], kv_ids [B, M], any strides; tq, tk, tsinks are
    tangents of q, k, sinks.
    """

    q: torch.Tensor
    k: torch.Tensor
    g: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    q_ids: torch.Tensor | None = None
    kv_ids: torch.Tensor | None = None
    tq: torch.Tensor | None = None
    tk: torch.Tensor | None = None
    tsinks: torch.Tensor | None = None


def unspecialised(*contiguous: str) -> dict[str, list[str]]:
    """Return options of triton.jit by which one compiled kernel serves every dim, stride and pointer.

    Triton would compile anew for each pattern of integers equal to 1 or divisible by 16 and of aligned pointers. Here
    the constant ALIGNED alone says so, of q, k and their tangents at once.

    Args:
        contiguous: names of the tensors besides INPUTS.
    """
    return {
        "do_not_specialize": [*STRIDES, *SCALARS],
        "do_not_specialize_on_alignment": [*INPUTS, *contiguous],
    }


def launch(
    kernel: Any,
    problem: Problem,
    tensors: Tensors,
    *contiguous: torch.Tensor | None,
    step: str,
) -> None:
    """Launch a kernel with one program for each tile of queries of each head, or of keys of each key head.

    Args:
        kernel: takes INPUTS, the contiguous tensors, STRIDES, SCALARS, FLOATS, constants.
        problem: what `guardrails.check` returned.
        tensors: what it reads, as `in_parts` gives it.
        contiguous: tensors that this package allocated.
        step: as in `Problem.tile`; "dkv" and "hk" are over keys, all others over queries.

    One compiled kernel serves with sinks and without. What is PLAIN, without softcap and segments, has a kernel of its
    own, which takes fewer registers and loads the next tile while it computes; all else has one, for whichever options
    (`blocks.specialised`).

    Raises:
        ValueError: where the blocks need more shared memory or registers than the GPU has.
    """
    blocks = problem.tile(step)
    width = padded_features(problem.features, blocks)
    rows, size, heads = (
        (problem.keys, blocks.key, problem.groups)
        if step in OVER_KEYS
        else (problem.queries, blocks.query, problem.heads)
    )
    special = specialised(blocks, problem.automatic(step))
    exact, rate = problem.units
    plain = special and problem.softcap == 0 and tensors.q_ids is None
    ranks = (4, 4, 3, 1, 2, 2, 4, 4, 1)
    strides = [s for tensor, rank in zip(tensors, ranks, strict=True) for s in _strides(tensor, rank)]
    with launching(kernel, problem.device, problem.dtype, blocks, f"D padded to {width}"):
        kernel[(triton.cdiv(rows, size) * problem.batch * heads,)](
            *_stand_ins(tensors, plain, contiguous[0] if problem.precision == "bf16x6" else tensors.q),
            *contiguous,
            *strides,
            problem.heads,
            problem.groups,
            problem.queries,
            problem.keys,
            problem.features,
            problem.causal_offset,
            problem.padded,
            int(tensors.sinks is not None),
            int(tensors.q_ids is not None),
            problem.scale,
            problem.softcap,
            rate,
            BLOCK_QUERY=blocks.query,
            BLOCK_KEY=blocks.key,
            WIDTH=width,
            ALIGNED=special and _aligned(problem, tensors),
            PLAIN=plain,
            EXACT=exact,
            PRECISION=as_loaded(problem.precision, tensors.q.dtype),
            num_warps=blocks.num_warps,
            num_stages=blocks.num_stages,
            enable_fp_fusion=may_fuse(exact, problem.precision),
        )


def in_parts(problem: Problem, tensors: Tensors, step: str) -> Tensors:
    """Return the tensors with what dots of a step take as `splitting.operands` gives it."""
    own = {name: each for name in OPERANDS if (each := getattr(tensors, name)) is not None}
    made = operands(problem.precision, *own.values(), widest=WIDEST[step])
    return tensors._replace(**dict(zip(own, made, strict=True)))


def _stand_ins(tensors: Tensors, plain: bool, sink: torch.Tensor | None) -> Tensors:
    """Return the tensors with others, which are not read, for options that are absent: None would compile anew.

    `sink` is any of the dtype of sinks.
    """
    if tensors.sinks is None:
        tensors = tensors._replace(sinks=sink, tsinks=sink)
    elif tensors.tsinks is None:
        tensors = tensors._replace(tsinks=sink)
    if tensors.q_ids is None and not plain:
        ids = tensors.q.new_empty(1, dtype=torch.int64)
        tensors = tensors._replace(q_ids=ids, kv_ids=ids)
    return tensors


def _strides(tensor: torch.Tensor | None, rank: int) -> tuple[int, ...]:
    return (0,) * rank if tensor is None else tensor.stride()


def _aligned(problem: Problem, tensors: Tensors) -> bool:
    """Return whether rows of q, k and their tangents are contiguous, of 16 n elements, and start at multiples of 16."""
    return problem.features % 16 == 0 and all(
        rows_aligned(tensor) for tensor in (tensors.q, tensors.k, tensors.tq, tensors.tk) if tensor is not None
    )
