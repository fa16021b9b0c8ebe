"""The compilations that decide whether these kernels fit a GPU: every pass, shipped configuration and width."""

from __future__ import annotations

from typing import Any

import torch

from . import launch, scan, tangents
from .blocks import LONG, Blocks, fitting, specialised

Compilation = tuple[str, Any, dict[str, str], dict[str, Any], dict[str, int]]

NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

PASSES: dict[str, Any] = {
    "sums": scan.sums_kernel,
    "scan": scan.scan_kernel,
    "tangent sums": tangents.tangent_sums_kernel,
    "tangent": tangents.tangent_kernel,
}


def compilations(dtype: str) -> list[Compilation]:
    """Return (name, kernel, signature, constants, options) of every pass, as triton.compile takes them.

    At D = Dv = 64 and at D = Dv = 128, the widest.

    Args:
        dtype: "float32", "bfloat16" or "float16"; for any other there is nothing to compile.
    """
    if dtype not in NAMES:
        return []
    return [
        compilation(name, dtype, width, label, blocks)
        for name in PASSES
        for width in (64, 128)
        for label, blocks in fitting(getattr(torch, dtype)).items()
    ]


def compilation(name: str, dtype: str, width: int, label: str, blocks: Blocks) -> Compilation:
    """Return one pass at D = Dv = width with one block configuration."""
    kernel = PASSES[name]
    constants: dict[str, Any] = {
        "CHUNK": blocks.chunk,
        "MICRO": blocks.micro,
        "WIDTH": width,
        "BLOCK_VALUE": blocks.value,
        "ALIGNED": specialised(blocks, getattr(torch, dtype), LONG),
    }
    constants = {argument: value for argument, value in constants.items() if argument in kernel.arg_names}
    signature = {argument: _type(argument, constants, dtype) for argument in kernel.arg_names}
    options = {"num_warps": blocks.num_warps, "num_stages": launch.stages(kernel, blocks)}
    return f"{name}, D = Dv = {width}, {label}", kernel, signature, constants, options


def _type(argument: str, constants: dict[str, Any], dtype: str) -> str:
    if argument in constants:
        return "constexpr"
    if argument in launch.STRIDES or argument in launch.SCALARS:
        return "i32"
    return f"*{NAMES[dtype]}" if argument in (*launch.ROWS, "out") else "*fp32"
