"""The compilations that decide whether these kernels fit a GPU: each pass at its widest rows and automatic blocks."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from . import gradients, hessian, launch, moments, output, tangents
from .blocks import choose
from .guardrails import LARGEST_FEATURES

Compilation = tuple[str, Any, dict[str, str], dict[str, Any], dict[str, int]]

NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
STATISTICS = ("m", "l", "z", "r", "z_tangent")
LONG = 4096  # rows, by which blocks are chosen

# name -> (order of the derivative, kernel, flags, tensors that are not there)
PASSES: dict[str, tuple[int, Any, dict[str, bool], tuple[str, ...]]] = {
    "forward": (0, output.forward_kernel, {}, ()),
    "z": (1, moments.moments_kernel, {"COTANGENT": True, "TANGENT": False}, ("r", "z_tangent")),
    "dk, dv": (1, gradients.key_kernel, {"NEEDS_K": True, "NEEDS_V": True}, ()),
    "jvp": (1, tangents.tangent_kernel, {"CENTRED": True, "PRIMAL": True}, ()),
    "hk, hv": (2, hessian.key_hvp_kernel, {"NEEDS_K": True, "NEEDS_V": True}, ()),
}


def compilations(dtype: str) -> list[Compilation]:
    """Return (name, kernel, signature, constants, options) of the passes that hold most, as triton.compile takes them.

    Those left out hold fewer tiles than one of these: dq than dk and dv, hq than hk and hv, r and z' than z and hk.

    Args:
        dtype: "float32", "bfloat16" or "float16"; for any other there is nothing to compile.
    """
    if dtype not in NAMES:
        return []
    return [_compilation(name, dtype) for name in PASSES]


def _compilation(name: str, dtype: str) -> Compilation:
    derivative, kernel, flags, absent = PASSES[name]
    blocks = choose(derivative, getattr(torch, dtype), LARGEST_FEATURES, LONG, LONG)
    constants: dict[str, Any] = dict.fromkeys(absent) | flags
    constants |= {"BLOCK_QUERY": blocks.query, "BLOCK_KEY": blocks.key, "WIDTH": LARGEST_FEATURES, "ALIGNED": True}
    constants |= {"ACCUMULATE": tl.float32, "PRECISION": "ieee"}
    signature = {argument: _type(argument, constants, dtype) for argument in kernel.arg_names}
    return name, kernel, signature, constants, {"num_warps": blocks.num_warps, "num_stages": blocks.num_stages}


def _type(argument: str, constants: dict[str, Any], dtype: str) -> str:
    if argument in constants:
        return "constexpr"
    if argument == "scale":
        return "fp32"
    if argument in launch.SCALARS or argument[-2:] in ("_b", "_h", "_r", "_c"):
        return "i32"
    return "*fp32" if argument in STATISTICS else f"*{NAMES[dtype]}"
