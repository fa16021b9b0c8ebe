"""The shipped kernels of the gated delta rule, as properties call them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from gradoracle.kernels import gated_delta as kernels
from gradoracle.kernels.gated_delta.blocks import choose
from gradoracle.kernels.gated_delta.compilations import compilations
from gradoracle.properties.gated_delta.algorithms import chunks_of

from gradoracle.model.derivative import Derivative
from gradoracle.model.kernel import Kernel, Shapes


def _fits(dtype: str, dims: Mapping[str, int]) -> Collection[str]:
    """The block configurations that every pass can run on this device."""
    return kernels.fitting(getattr(torch, dtype))


def _chunk(dtype: str, rows: int, blocks: str, arguments: Mapping[str, Any]) -> int:
    """Rows of a chunk of the configuration that is forced, or else chosen."""
    if blocks:
        return kernels.BLOCKS[blocks].chunk
    return choose(getattr(torch, dtype), arguments.get("precision", "ieee"), rows).chunk


def _algorithm(dtype: str, shapes: Shapes, blocks: str, arguments: Mapping[str, Any]) -> str:
    """The order of roundings of its chunks."""
    return chunks_of(_chunk(dtype, shapes["q"][2], blocks, arguments))


def _tiles(dtype: str, dims: Mapping[str, int], blocks: str, _: int, arguments: Mapping[str, Any]) -> Mapping[str, int]:
    """Rows of a chunk."""
    return {"T": _chunk(dtype, dims["T"], blocks, arguments)}


KERNELS = (
    Kernel(
        "gated_delta",
        "gated_delta",
        kernels.gated_delta,
        dtypes=("float32", "bfloat16", "float16"),
        algorithm=_algorithm,
        deterministic=True,
        claims=(Derivative.FORWARD, Derivative.VJP),
        blocks=dict(kernels.BLOCKS),
        fits=_fits,
        tiles=_tiles,
        extras={"compilations": compilations, "chunk_axes": ("CHUNK",), "feature_axes": ("WIDTH", "VALUES")},
    ),
)
