"""The shipped kernels of LSE, as properties call them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from gradoracle.kernels import lse as kernels
from gradoracle.kernels.lse.blocks import choose
from gradoracle.kernels.lse.compilations import compilations
from torch import Tensor

from gradoracle.model.kernel import Kernel
from gradoracle.model.signature import cotangent_name


def _backward(
    inputs: Mapping[str, Tensor], cotangent: Tensor, which: str, options: Mapping[str, Any], blocks: Any
) -> dict[str, Tensor]:
    """Gradients by name, from the backward of that name, whatever its workspace."""
    leaves = {n: t.detach().requires_grad_(t.is_floating_point()) for n, t in inputs.items()}
    named = {name: leaf for name, leaf in leaves.items() if name not in ("q", "k")}
    with torch.enable_grad():
        result = kernels.lse(
            leaves["q"], leaves["k"], **named, **options, blocks=blocks, backward=which, workspace_limit=1 << 40
        )
    expected = {cotangent_name(name): leaf for name, leaf in leaves.items() if leaf.requires_grad}
    return dict(zip(expected, torch.autograd.grad(result, list(expected.values()), cotangent), strict=True))


def _fits(dtype: str, dims: Mapping[str, int]) -> Collection[str]:
    """The block configurations that every pass can run on this device."""
    return kernels.fitting(getattr(torch, dtype), dims["D"])


def _tiles(
    dtype: str, dims: Mapping[str, int], blocks: str, order: int, arguments: Mapping[str, Any]
) -> Mapping[str, int]:
    """Rows of a tile of queries and of one of keys."""
    precision = arguments.get("precision", "ieee")
    asked = ("forward", "dq", "hq")[order], getattr(torch, dtype), precision, dims["D"], dims["T"], dims["M"]
    chosen = kernels.BLOCKS[blocks] if blocks else choose(*asked)
    return {"T": chosen.query, "M": chosen.key}


KERNELS = (
    Kernel(
        "lse",
        "lse",
        kernels.lse,
        dtypes=("float32", "bfloat16", "float16"),
        deterministic=True,
        blocks=dict(kernels.BLOCKS),
        fits=_fits,
        tiles=_tiles,
        extras={"compilations": compilations, "backward": _backward},
    ),
)
