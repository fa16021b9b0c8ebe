"""The shipped kernels of SDPA, as properties call them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import torch
from gradoracle.kernels import sdpa as kernels
from gradoracle.kernels.arguments import scale
from gradoracle.kernels.launching import score_units
from gradoracle.kernels.sdpa.blocks import choose, interpreted, padded_features
from gradoracle.kernels.sdpa.compilations import compilations
from torch import Tensor

from gradoracle.model.case import Case
from gradoracle.model.kernel import Kernel

Tensors = Sequence[Tensor]
Options = Mapping[str, Any]
Named = Mapping[str, Tensor]


def _stats(inputs: Named, options: Options, blocks: Any) -> tuple[Tensor, ...]:
    """(o, m, l)."""
    return kernels.forward(*inputs.values(), **options, blocks=blocks)


def _backward(inputs: Named, cotangents: Tensors, statistics: Tensors, options: Options, blocks: Any) -> Any:
    """(dq, dk, dv) from given (m, l)."""
    return kernels.backward(*inputs.values(), *cotangents, *statistics, **options, blocks=blocks)


def _backward_from_output(inputs: Named, cotangents: Tensors, kept: Tensors, options: Options, blocks: Any) -> Any:
    """(dq, dk, dv) from given (m, l, o)."""
    m, l, o = kept
    return kernels.backward(*inputs.values(), *cotangents, m, l, o=o, **options, blocks=blocks)


def _jvp(inputs: Named, tangents: Named, options: Options, blocks: Any) -> tuple[Tensor, Tensor]:
    """(o, tangent of o)."""
    return kernels.jvp(*inputs.values(), *tangents.values(), **options, blocks=blocks)


def _jvp_from_statistics(
    inputs: Named, tangents: Tensors, statistics: Tensors, options: Options, blocks: Any
) -> tuple[Tensor, Tensor]:
    """(o rebuilt from given m and l, tangent of o)."""
    m, l = statistics
    return kernels.jvp(*inputs.values(), *tangents, m=m, l=l, **options, blocks=blocks)


def _jvp_frozen(inputs: Named, tangents: Tensors, statistics: Tensors | None, options: Options, blocks: Any) -> Tensor:
    """The tangent of o with m and l frozen, those given or the forward's."""
    m, l = statistics if statistics is not None else (None, None)
    return kernels.jvp_frozen(*inputs.values(), *tangents, m=m, l=l, **options, blocks=blocks)[1]


def _hvp(inputs: Named, tangents: Named, cotangents: Named, options: Options, blocks: Any) -> Any:
    """(hq, hk, hv)."""
    return kernels.hvp(*inputs.values(), *cotangents.values(), *tangents.values(), **options, blocks=blocks)


def _hvp_central_difference(
    inputs: Named, tangents: Tensors, cotangents: Tensors, step: float, options: Options, blocks: Any
) -> Any:
    """(hq, hk, hv) by a central difference of VJPs."""
    return kernels.hvp_central_difference(*inputs.values(), *cotangents, *tangents, step=step, **options, blocks=blocks)


WIDEST_UNROLLED = 64
"""Up to how many features IEEE float32 is compiled with tiles of a thousand scores within 20 s a pass: Triton unrolls
such dots. Of wider rows a GPU checks the smallest configuration and the automatic one, the interpreter all of them."""


def _fits(dtype: str, dims: Mapping[str, int]) -> Collection[str]:
    """The block configurations that every pass can run on this device, and that compile there in time."""
    found = kernels.fitting(getattr(torch, dtype), dims["D"], dims["Dv"])
    unrolled = dtype == "float32" and padded_features(dims["D"], dims["Dv"]) > WIDEST_UNROLLED and not interpreted()
    return ["small"] if unrolled else found


def _tiles(
    dtype: str, dims: Mapping[str, int], blocks: str, order: int, arguments: Mapping[str, Any]
) -> Mapping[str, int]:
    """Rows of a tile of queries and of one of keys."""
    width = padded_features(dims["D"], dims["Dv"])
    precision = arguments.get("precision", "ieee")
    asked = ("forward", "dq", "hq")[order], getattr(torch, dtype), precision, width, dims["T"], dims["M"]
    chosen = kernels.BLOCKS[blocks] if blocks else choose(*asked)
    return {"T": chosen.query, "M": chosen.key}


def _compiled_for(case: Case) -> Hashable:
    """Dtype, blocks, width of a tile's rows, whether the scale is a power of two, and whether rows are aligned."""
    features, values = case.dims["D"], case.dims["Dv"]
    aligned = features % 16 == values % 16 == 0 and all(draw.layout == "contiguous" for draw in case.draws.values())
    exact, _ = score_units(scale(case.options.get("scale"), features))
    return case.dtype, case.blocks, padded_features(features, values), exact, aligned


KERNELS = (
    Kernel(
        "sdpa",
        "sdpa",
        kernels.sdpa,
        jvp=_jvp,
        hvp=_hvp,
        dtypes=("float32", "bfloat16", "float16", *(("float64",) if interpreted() else ())),
        deterministic=True,
        blocks=dict(kernels.BLOCKS),
        fits=_fits,
        tiles=_tiles,
        compiled_for=_compiled_for,
        extras={
            "stats": _stats,
            "backward": _backward,
            "backward_from_output": _backward_from_output,
            "jvp_from_statistics": _jvp_from_statistics,
            "jvp_frozen": _jvp_frozen,
            "hvp_central_difference": _hvp_central_difference,
            "compilations": compilations,
        },
    ),
)
