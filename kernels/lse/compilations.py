"""The compilations that decide whether these kernels fit a GPU: each pass at its widest rows and automatic blocks."""

from __future__ import annotations

from typing import Any

import torch

from .. import arguments
from ..blocks import Blocks
from ..launching import may_fuse, score_units
from ..splitting import as_loaded
from . import fused, hessian, launch, output, separate, tangents
from .blocks import WIDEST, choose
from .guardrails import LARGEST_FEATURES

Compilation = tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]

NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
ROWS = ("g", "m", "l", "lse", "shift", "weight", "tangent", "partials")
LONG = 4096  # rows, by which blocks are chosen

# name -> (step, as in `tuned.PARTS`, kernel)
PASSES: dict[str, tuple[str, Any]] = {
    "forward": ("forward", output.forward_kernel),
    "dq": ("dq", separate.query_kernel),
    "dk": ("dkv", separate.key_kernel),
    "fused": ("dkv", fused.fused_kernel),
    "jvp": ("jvp", tangents.tangent_kernel),
    "hq": ("hq", hessian.query_hvp_kernel),
    "hk": ("hk", hessian.key_hvp_kernel),
}


def compilations(dtype: str, capability: tuple[int, int] = (9, 0)) -> list[Compilation]:
    """Return (name, kernel, signature, constants, options) of every pass, as triton.compile takes them.

    Plain ones, without softcap and segments, at the widest rows and at half of them, for which blocks are larger; with
    them at half of the widest, since an `if` around its loads keeps a kernel from holding two tiles at once.

    Args:
        dtype: "float32", "bfloat16" or "float16"; for any other there is nothing to compile.
        capability: of the GPU that blocks are chosen for.
    """
    if dtype not in NAMES:
        return []
    half = LARGEST_FEATURES // 2
    expected = ((half, False), (half, True), (LARGEST_FEATURES, True))
    return [
        compilation(name, dtype, width, plain=plain, capability=capability)
        for name in PASSES
        for width, plain in expected
    ]


def compilation(
    name: str,
    dtype: str,
    width: int,
    *,
    plain: bool = True,
    precision: str = "ieee",
    capability: tuple[int, int] = (9, 0),
    aligned: bool = True,
    blocks: Blocks | None = None,
) -> Compilation:
    """Return one of them, for rows of `width` features on a GPU of a capability; `blocks` are automatic by default."""
    step, kernel = PASSES[name]
    blocks = blocks or choose(step, getattr(torch, dtype), precision, width, LONG, LONG, capability)
    constants: dict[str, Any] = {"BLOCK_QUERY": blocks.query, "BLOCK_KEY": blocks.key, "WIDTH": width}
    exact = plain and score_units(arguments.scale(None, width))[0]
    loaded = "bfloat16" if precision == "bf16x6" and width <= WIDEST[step] else dtype
    constants |= {"ALIGNED": aligned, "PLAIN": plain, "EXACT": exact}
    constants |= {"PRECISION": as_loaded(precision, getattr(torch, loaded))}
    constants |= dict.fromkeys(("q_ids", "kv_ids")) if plain else {}
    signature = {
        argument: _type(argument, constants, loaded if argument in launch.OPERANDS else dtype)
        for argument in kernel.arg_names
    }
    options: dict[str, Any] = {
        "num_warps": blocks.num_warps,
        "num_stages": blocks.num_stages,
        "enable_fp_fusion": may_fuse(exact, precision),
    }
    return f"{name}, D = {width}{', plain' if plain else ''}", kernel, signature, constants, options


def _type(argument: str, constants: dict[str, Any], dtype: str) -> str:
    if argument in constants:
        return "constexpr"
    if argument in launch.FLOATS:
        return "fp32"
    if argument in launch.SCALARS or argument in launch.STRIDES:
        return "i32"
    if argument in ("q_ids", "kv_ids"):
        return "*i64"
    return "*fp32" if argument in ROWS else f"*{NAMES[dtype]}"
