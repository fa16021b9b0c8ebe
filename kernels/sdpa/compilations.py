"""The compilations that decide whether these kernels fit a GPU: each pass with its automatic blocks."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from .. import arguments
from ..blocks import Blocks
from ..launching import may_fuse, score_units
from ..splitting import WIDEST, as_loaded
from . import gradients, hessian, launch, moments, output, tangents
from .blocks import choose
from .guardrails import LARGEST_FEATURES

Compilation = tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]

NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
STATISTICS = ("m", "l", *moments.Moments._fields)
OPERANDS = ("q", "k", "v", "g", "tq", "tk", "tv")  # what dots take
IN_PARTS = ("forward", "z", "dq", "dk, dv")  # the passes that load parts of them, where those are narrow
LONG = 4096  # rows, by which blocks are chosen

# name, as in `tuned.PARTS` -> (kernel, flags, tensors that are not there)
PASSES: dict[str, tuple[Any, dict[str, bool], tuple[str, ...]]] = {
    "forward": (output.forward_kernel, {}, ()),
    "z": (moments.moments_kernel, {"COTANGENT": True, "TANGENT": False, "ONLINE": False}, ("r", "z_tangent")),
    "dq": (gradients.query_kernel, {"CENTRED": True, "NEEDS_Q": True}, ()),
    "dk, dv": (gradients.key_kernel, {"NEEDS_K": True, "NEEDS_V": True}, ()),
    "r": (moments.moments_kernel, {"COTANGENT": False, "TANGENT": True, "ONLINE": True}, ("z", "z_tangent")),
    "jvp": (tangents.tangent_kernel, {"CENTRED": True, "PRIMAL": True}, ()),
    "z'": (moments.moments_kernel, {"COTANGENT": True, "TANGENT": True, "ONLINE": True}, ()),
    "hq": (hessian.query_hvp_kernel, {}, ()),
    "hk, hv": (hessian.key_hvp_kernel, {"NEEDS_K": True, "NEEDS_V": True}, ()),
}
LARGEST = ("forward", "z", "dq", "dk, dv", "jvp", "z'", "hq", "hk, hv")


def compilations(dtype: str, capability: tuple[int, int] = (9, 0)) -> list[Compilation]:
    """Return (name, kernel, signature, constants, options) of the passes that hold most, as triton.compile takes them.

    The one left out, r, holds fewer tiles than jvp, in blocks as large.

    Args:
        dtype: "float32", "bfloat16" or "float16"; for any other there is nothing to compile.
        capability: of the GPU that blocks are chosen for.
    """
    every = LARGEST if dtype in NAMES else ()
    return [compilation(name, dtype, LARGEST_FEATURES, capability=capability) for name in every]


def compilation(
    name: str,
    dtype: str,
    width: int,
    *,
    precision: str = "ieee",
    capability: tuple[int, int] = (9, 0),
    aligned: bool = True,
    known: bool = False,
    blocks: Blocks | None = None,
) -> Compilation:
    """Return one of them, for rows of `width` features on a GPU of a capability; `blocks` are automatic by default.

    With `known` r and the JVP are those of m and l that are given.
    """
    kernel, flags, absent = PASSES[name]
    blocks = blocks or choose(name, getattr(torch, dtype), precision, width, LONG, LONG, capability)
    constants: dict[str, Any] = dict.fromkeys(absent) | flags
    if name == "jvp":
        alone = tangents.in_one_sweep(getattr(torch, dtype), precision, width)
        constants |= {"MOVING": alone, "ONLINE": alone} | ({"r": None} if alone else {})
        constants |= dict.fromkeys(("shift", "inverse") if alone and not known else ())
    if known and "ONLINE" in constants:
        constants["ONLINE"] = False
    constants |= {"BLOCK_QUERY": blocks.query, "BLOCK_KEY": blocks.key, "WIDTH": width, "ALIGNED": aligned}
    exact = score_units(arguments.scale(None, width))[0]
    loaded = "bfloat16" if precision == "bf16x6" and name in IN_PARTS and width <= WIDEST else dtype
    constants |= {"ACCUMULATE": tl.float32, "EXACT": exact}
    constants |= {"PRECISION": as_loaded(precision, getattr(torch, loaded))}
    signature = {
        argument: _type(argument, constants, loaded if argument in OPERANDS else dtype) for argument in kernel.arg_names
    }
    options: dict[str, Any] = {
        "num_warps": blocks.num_warps,
        "num_stages": blocks.num_stages,
        "enable_fp_fusion": may_fuse(exact, precision),
    }
    return name, kernel, signature, constants, options


def _type(argument: str, constants: dict[str, Any], dtype: str) -> str:
    if argument in constants:
        return "constexpr"
    if argument in launch.FLOATS:
        return "fp32"
    if argument in launch.SCALARS or argument[-2:] in ("_b", "_h", "_r", "_c"):
        return "i32"
    return "*fp32" if argument in STATISTICS else f"*{NAMES[dtype]}"
