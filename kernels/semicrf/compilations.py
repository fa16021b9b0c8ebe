"""The compilations that decide whether these kernels fit a GPU: every pass, shipped configuration and two sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton

from .blocks import BLOCKS, Blocks, padded
from .far import far_kernel
from .guardrails import Problem
from .launch import RESULTS, SCALARS, STRIDED, STRIDES
from .posteriors import durations_kernel, positions_kernel
from .recursion import recursion_kernel
from .scan import scan_kernel
from .tables import needs_far, rows_of, slots, width

Compilation = tuple[str, Any, dict[str, str], dict[str, Any], dict[str, int]]

NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
SIZES = {"parallel": (8, 4), "sequential": (64, 24)}  # K and C, by path
LARGEST = "long"
VARIANTS = ((False, True), (True, True), (False, False), (True, False))  # whether by duration, whether with tangents
DECIDING = (
    (  # Triton 3.6 takes most where states are many
        ("parallel", False, ("scan",)),
        ("sequential", True, ("forward", "backward", "durations", "positions", "far")),
    )
    if triton.__version__.startswith("3.6.")
    else (
        ("parallel", False, ("forward", "backward", "durations", "scan")),
        ("sequential", True, ("positions", "far")),
    )
)
MANY = 1 << 20  # rows, more than any tile holds


def compilations(dtype: str) -> list[Compilation]:
    """Return (name, kernel, signature, constants, options) of every pass, as triton.compile takes them.

    At K = 8, C = 4 on the parallel path, at K = 64, C = 24 on the sequential; with tangents, and in the largest
    configuration with a transition for each duration and with values alone, too.

    Args:
        dtype: "float32", "bfloat16" or "float16"; for any other there is nothing to compile.
    """
    if dtype not in NAMES:
        return []
    return [
        compilation
        for path in SIZES
        for label, blocks in BLOCKS.items()
        for per_duration, tangent in VARIANTS
        if label == LARGEST or (not per_duration and tangent)
        for compilation in _passes(dtype, path, label, blocks, per_duration, tangent)
    ]


def deciding(dtype: str) -> list[Compilation]:
    """Return those of `compilations` that take most shared memory, one or two of each kernel.

    With values alone: tangents take as much, and compile for twice as long.
    """
    if dtype not in NAMES:
        return []
    return [
        compilation
        for path, per_duration, names in DECIDING
        for compilation in _passes(dtype, path, LARGEST, BLOCKS[LARGEST], per_duration, False)
        if compilation[0].split(",")[0] in names
    ]


def _passes(
    dtype: str, path: str, label: str, blocks: Blocks, per_duration: bool, tangent: bool
) -> Iterator[Compilation]:
    durations, labels = SIZES[path]
    problem = Problem(
        1, MANY, labels, durations, per_duration, path, blocks.chunk, MANY // blocks.chunk, blocks,
        getattr(torch, dtype), torch.device("cuda"),
    )  # fmt: skip
    ring, pairs = slots(problem), 0 if per_duration else padded(labels) ** 2
    one = {"SLOTS": ring, "LABELS": padded(labels), "PER_DURATION": per_duration, "TANGENT": tangent}
    stretch = rows_of(problem, MANY, max(ring * width(problem), pairs))
    half = rows_of(problem, MANY, 2 * max(ring * width(problem), pairs))
    far = needs_far(problem)
    sources = {"OPERATORS": path == "parallel", "FAR": far}
    kernels: dict[str, tuple[Any, dict[str, Any]]] = {
        "forward": (recursion_kernel, {"ROWS": 1 if far else stretch, **one, "FORWARD": True, **sources}),
        "backward": (recursion_kernel, {"ROWS": 1 if far else stretch, **one, "FORWARD": False, **sources}),
        "positions": (positions_kernel, {"ROWS": half, **one, "SEGMENTS": not tangent}),
        "durations": (durations_kernel, {"ROWS": half, **one}),
    }
    if far:
        rows = rows_of(problem, MANY, ring * width(problem))
        kernels["far"] = (far_kernel, {"ROWS": rows, **one, "FORWARD": True})
    if path == "parallel" and not per_duration:
        kernels["scan"] = (scan_kernel, {"ROWS": 1, "STATES": padded(durations * labels), "TANGENT": tangent})
    what = f"{path}, {'[K, C, C]' if per_duration else '[C, C]'}{', tangents' if tangent else ''}, {label}"
    for name, (kernel, constants) in kernels.items():
        signature = {argument: _type(argument, constants, dtype) for argument in kernel.arg_names}
        options = {"num_warps": blocks.num_warps, "num_stages": blocks.num_stages}
        yield f"{name}, K = {durations}, C = {labels}, {what}", kernel, signature, constants, options


def _type(argument: str, constants: dict[str, Any], dtype: str) -> str:
    if argument in constants:
        return "constexpr"
    if argument in STRIDES or argument in SCALARS:
        return "i32"
    if argument == "lengths":
        return "*i64"
    if argument == "probabilities":
        return "*fp32"
    return f"*{NAMES[dtype]}" if argument in (*STRIDED, *RESULTS) else "*fp64"
