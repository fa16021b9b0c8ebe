"""The compilations that decide whether these kernels fit a GPU: passes, configurations and widths."""

from __future__ import annotations

from typing import Any

import torch

from ..blocks import dots_of
from . import chunks, gradients, launch, states
from .blocks import AUTOMATIC, Blocks, feature_columns, fitting, forced_on, of_part

Compilation = tuple[str, Any, dict[str, str], dict[str, Any], dict[str, int]]

NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
WIDTHS = (64, 128)

PASSES: dict[str, tuple[str, Any, dict[str, bool]]] = {
    "inverse": ("inverse", chunks.inverse_kernel, {}),
    "ends": ("states", states.states_kernel, {"KEEP": False}),
    "entries": ("entries", states.entries_kernel, {"BACKWARD": False}),
    "states": ("states", states.states_kernel, {"KEEP": True}),
    "output": ("output", chunks.output_kernel, {}),
    "local": ("local", gradients.local_kernel, {}),
    "ends of costates": ("costates", states.costates_kernel, {"KEEP": False}),
    "entries of costates": ("entries", states.entries_kernel, {"BACKWARD": True}),
    "costates": ("costates", states.costates_kernel, {"KEEP": True}),
    "gradients": ("gradients", gradients.gradients_kernel, {}),
}
"""By name the pass whose tiles it has, the kernel, and constants of its own."""


def compilations(dtype: str, capability: tuple[int, int] = (9, 0)) -> list[Compilation]:
    """Return (name, kernel, signature, constants, options) of the passes, as triton.compile takes them.

    Each shipped configuration as `blocks=` forces it, at D = Dv = 128, the widest; and what is automatic on a GPU of
    aligned rows, at D = Dv = 64 too, of float32 in "tf32" as well.

    Args:
        dtype: "float32", "bfloat16" or "float16"; for any other there is nothing to compile.
        capability: of the GPU that tiles are chosen for.
    """
    if dtype not in NAMES:
        return []
    held = getattr(torch, dtype)
    found = [
        compilation(
            name, dtype, max(WIDTHS), label, forced_on(blocks, part, dots_of(held, "ieee")), capability, aligned=False
        )
        for label, blocks in fitting(held).items()
        for name, (part, _, _) in PASSES.items()
    ]
    for precision in ("ieee", "tf32") if held == torch.float32 else ("ieee",):
        dots = dots_of(held, precision)
        label = "automatic" if precision == "ieee" else f"automatic, {precision}"
        found += [
            compilation(name, dtype, width, label, of_part(AUTOMATIC[dots], part, dots, width, capability),
                        capability, precision=precision)
            for name, (part, _, _) in PASSES.items()
            for width in WIDTHS
        ]  # fmt: skip
    return found


def compilation(
    name: str, dtype: str, width: int, label: str, blocks: Blocks, capability: tuple[int, int],
    *, aligned: bool = True, precision: str = "ieee",
) -> Compilation:  # fmt: skip
    """Return one pass at D = Dv = width with one block configuration, as on a GPU of that capability."""
    _, kernel, own = PASSES[name]
    constants: dict[str, Any] = {
        **own,
        "CHUNK": blocks.chunk,
        "WIDTH": width,
        "VALUES": width,
        "BLOCK_VALUE": min(blocks.value, width),
        "BLOCK_FEATURE": feature_columns(blocks, dots_of(getattr(torch, dtype), precision), width, capability),
        "ALIGNED": aligned,
        "PRECISION": precision,
        "SOLVE": launch.solve_of(dots_of(getattr(torch, dtype), precision)),
    }
    constants = {argument: value for argument, value in constants.items() if argument in kernel.arg_names}
    signature = {argument: _type(argument, constants, dtype) for argument in kernel.arg_names}
    options = {"num_warps": blocks.num_warps, "num_stages": blocks.num_stages}
    return f"{name}, D = Dv = {width}, {label}", kernel, signature, constants, options


def _type(argument: str, constants: dict[str, Any], dtype: str) -> str:
    if argument in constants:
        return "constexpr"
    if argument == "scale":
        return "fp32"
    if argument in launch.STRIDES or argument in launch.SCALARS:
        return "i32"
    in_float32 = ("g", "dg", "decays", *launch.STATES, "last", "dinitial", "own", "ends", "entries")
    return "*fp32" if argument in in_float32 else f"*{NAMES[dtype]}"
