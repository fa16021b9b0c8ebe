"""The compilations that decide whether these kernels fit a GPU: passes, configurations and widths."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from ..blocks import dots_of
from ..launching import may_fuse
from . import gradients, hessian, launch, scan, tangents
from .blocks import ENOUGH_PROGRAMS, Blocks, automatic, fitting, has_tuned, in_one_stage, of_part

Compilation = tuple[str, Any, dict[str, str], dict[str, Any], dict[str, int]]

NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
WIDTHS = (64, 128)

PASSES: dict[str, Any] = {
    "sums": scan.sums_kernel,
    "scan": scan.scan_kernel,
    "gradients": gradients.gradients_kernel,
    "tangent sums": tangents.tangent_sums_kernel,
    "tangent": tangents.tangent_kernel,
    "hessian": hessian.hessian_kernel,
}
FORCED = ("sums", "gradients", "tangent sums", "hessian")
"""Passes that hold at least the tiles of the others."""


def compilations(dtype: str, capability: tuple[int, int] = (9, 0)) -> list[Compilation]:
    """Return (name, kernel, signature, constants, options) of the passes, as triton.compile takes them.

    Each shipped configuration as `blocks=` forces it, at D = Dv = 128, the widest; the one that is automatic in every
    pass, of aligned rows, at D = Dv = 64 too; and so what is tuned, on a GPU that has such tiles, and of float32 the
    passes in "bf16x6" on any.

    Args:
        dtype: "float32", "bfloat16" or "float16"; for any other there is nothing to compile.
        capability: of the GPU that tiles are chosen for.
    """
    if dtype not in NAMES:
        return []
    held = getattr(torch, dtype)
    own = automatic(held, "ieee")._replace(piece=0)
    found = []
    for label, blocks in fitting(held).items():
        chosen = blocks._replace(piece=0) == own
        for part in PASSES if chosen else FORCED:
            for width in WIDTHS if chosen else (max(WIDTHS),):
                found.append(compilation(part, dtype, width, label, in_one_stage(blocks, part), aligned=chosen))
    return found + on_tensor_cores(dtype, capability)


def on_tensor_cores(dtype: str, capability: tuple[int, int]) -> list[Compilation]:
    """Return those of aligned rows whose dots take tensor cores and that no shipped configuration is the same as."""
    held = getattr(torch, dtype)
    precision = "bf16x6" if held == torch.float32 else "ieee"
    dots, own = dots_of(held, precision), automatic(held, precision)
    chosen = "tuned" if has_tuned(dots, capability) else "automatic"
    if dots == "split":
        chosen += f", {precision}"
    found = []
    for part, width in itertools.product(PASSES, WIDTHS):
        few, many = (of_part(own, part, dots, width, ENOUGH_PROGRAMS + more, capability) for more in (0, 1))
        if dots == "split" or has_tuned(dots, capability):
            found.append(compilation(part, dtype, width, chosen, few, precision=precision))
        if many != few:
            found.append(compilation(part, dtype, width, f"{chosen}, many programs", many, precision=precision))
    return found


def compilation(
    part: str, dtype: str, width: int, label: str, blocks: Blocks, *, aligned: bool = True, precision: str = "ieee"
) -> Compilation:
    """Return one pass at D = Dv = width with one block configuration."""
    kernel = PASSES[part]
    constants: dict[str, Any] = {
        "CHUNK": blocks.chunk,
        "MICRO": blocks.micro,
        "WIDTH": width,
        "BLOCK_VALUE": blocks.value,
        "ALIGNED": aligned,
        "PRECISION": precision,
    }
    constants = {argument: value for argument, value in constants.items() if argument in kernel.arg_names}
    signature = {argument: _type(argument, constants, dtype) for argument in kernel.arg_names}
    options = {
        "num_warps": blocks.num_warps,
        "num_stages": blocks.num_stages,
        "enable_fp_fusion": may_fuse(True, precision),
    }
    return f"{part}, D = Dv = {width}, {label}", kernel, signature, constants, options


def _type(argument: str, constants: dict[str, Any], dtype: str) -> str:
    if argument in constants:
        return "constexpr"
    if argument in launch.STRIDES or argument in launch.SCALARS:
        return "i32"
    return f"*{NAMES[dtype]}" if argument in (*launch.ROWS, *launch.OUTPUTS) else "*fp32"
