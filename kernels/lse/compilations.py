"""The compilations that decide whether these kernels fit a GPU: each pass at its widest rows and automatic blocks."""

from __future__ import annotations

from typing import Any

import torch

from . import fused, hessian, launch, output, separate, tangents
from .blocks import choose
from .guardrails import LARGEST_FEATURES

Compilation = tuple[str, Any, dict[str, str], dict[str, Any], dict[str, int]]

NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
FLOATS = ("g", "m", "l", "lse", "tangent", "partials")
LONG = 4096  # rows, by which blocks are chosen

PASSES: dict[str, Any] = {
    "forward": output.forward_kernel,
    "dq": separate.query_kernel,
    "dk": separate.key_kernel,
    "fused": fused.fused_kernel,
    "jvp": tangents.tangent_kernel,
    "hq": hessian.query_hvp_kernel,
    "hk": hessian.key_hvp_kernel,
}


def compilations(dtype: str) -> list[Compilation]:
    """Return (name, kernel, signature, constants, options) of every pass, as triton.compile takes them.

    Plain ones, without softcap and segments, at the widest rows and at half of them, for which blocks are larger; with
    them at half of the widest, since an `if` around its loads keeps a kernel from holding two tiles at once.

    Args:
        dtype: "float32", "bfloat16" or "float16"; for any other there is nothing to compile.
    """
    if dtype not in NAMES:
        return []
    half = LARGEST_FEATURES // 2
    expected = ((half, False), (half, True), (LARGEST_FEATURES, True))
    return [_compilation(name, dtype, width, plain) for name in PASSES for width, plain in expected]


def _compilation(name: str, dtype: str, width: int, plain: bool) -> Compilation:
    kernel, blocks = PASSES[name], choose(getattr(torch, dtype), width, LONG, LONG)
    constants: dict[str, Any] = {"BLOCK_QUERY": blocks.query, "BLOCK_KEY": blocks.key, "WIDTH": width}
    constants |= {"ALIGNED": True, "PLAIN": plain}
    constants |= dict.fromkeys(("q_ids", "kv_ids")) if plain else {}
    signature = {argument: _type(argument, constants, dtype) for argument in kernel.arg_names}
    options = {"num_warps": blocks.num_warps, "num_stages": blocks.num_stages}
    return f"{name}, D = {width}{', plain' if plain else ''}", kernel, signature, constants, options


def _type(argument: str, constants: dict[str, Any], dtype: str) -> str:
    if argument in constants:
        return "constexpr"
    if argument in ("scale", "softcap"):
        return "fp32"
    if argument in launch.SCALARS or argument in launch.STRIDES:
        return "i32"
    if argument in ("q_ids", "kv_ids"):
        return "*i64"
    return "*fp32" if argument in FLOATS else f"*{NAMES[dtype]}"
