"""SDPA: definition, domain of cases, laws and kernels of scaled dot-product attention (DESIGN 9)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from gradoracle.kernels import sdpa as kernels
from gradoracle.kernels.sdpa.blocks import choose, interpreted, padded_features
from gradoracle.kernels.sdpa.compilations import compilations
from gradoracle.properties.sdpa_algorithms import ALGORITHMS
from gradoracle.properties.sdpa_differences import DIFFERENCES
from gradoracle.properties.sdpa_laws import IDENTITIES
from gradoracle.properties.sdpa_masks import MASKS
from gradoracle.properties.sdpa_scaling import SCALINGS
from gradoracle.properties.sdpa_statistics import STATISTICS
from gradoracle.properties.sdpa_symmetries import SYMMETRIES
from jaxtyping import Float
from torch import Tensor

from gradoracle.dims import sizes
from gradoracle.family import family
from gradoracle.kernel import Kernel

Tensors = Sequence[Tensor]
Options = Mapping[str, Any]
Named = Mapping[str, Tensor]


@family(
    outputs=("o",),
    dims={
        "B": sizes(1, 3),
        "H": sizes(1, 4),
        "T": sizes(1, 320, large=131_072),
        "M": sizes(1, 320),
        "D": sizes(1, 128),
        "Dv": sizes(1, 128),
    },
    options={"scale": (None, 0.25, 1.0), "causal": (False, True)},
    joint={
        "logits 1e4": {"q": "normal:100", "k": "normal:100"},
        "peaked": {"q": "normal:8", "k": "normal:1"},
        "positive": {"q": "positive", "k": "positive", "v": "positive", "do": "positive"},
    },
    algorithms=ALGORITHMS,
    properties=(*IDENTITIES, *SYMMETRIES, *MASKS, *SCALINGS, *STATISTICS, *DIFFERENCES),
)
def sdpa(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M Dv"],
    *,
    scale: float | None = None,
    causal: bool = False,
) -> Float[Tensor, "B H T Dv"]:
    """softmax(scale q k^T) v; causal aligns the last query with the last key; a query that sees no key gives 0."""
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    s = q @ k.transpose(-1, -2) * factor  # [B H T M], natural log units
    if not causal:
        return torch.softmax(s, -1) @ v
    queries, keys = q.shape[-2], k.shape[-2]
    visible = torch.arange(keys)[None, :] <= torch.arange(queries)[:, None] + (keys - queries)
    sees = visible.any(-1, keepdim=True)
    s = torch.where(sees, torch.where(visible, s, -torch.inf), 0.0)  # no row of -inf alone reaches the softmax
    return torch.where(sees, torch.softmax(s, -1), 0.0) @ v


def _stats(inputs: Tensors, options: Options, blocks: Any) -> tuple[Tensor, ...]:
    """(o, m, l)."""
    return kernels.forward(*inputs, **options, blocks=blocks)


def _backward(inputs: Tensors, cotangents: Tensors, statistics: Tensors, options: Options, blocks: Any) -> Any:
    """(dq, dk, dv) from given (m, l)."""
    return kernels.backward(*inputs, *cotangents, *statistics, **options, blocks=blocks)


def _jvp(inputs: Named, tangents: Named, options: Options, blocks: Any) -> tuple[Tensor, Tensor]:
    """(o, tangent of o)."""
    return kernels.jvp(*inputs.values(), *tangents.values(), **options, blocks=blocks)


def _jvp_from_statistics(
    inputs: Tensors, tangents: Tensors, statistics: Tensors, options: Options, blocks: Any
) -> tuple[Tensor, Tensor]:
    """(o rebuilt from given m and l, tangent of o)."""
    m, l = statistics
    return kernels.jvp(*inputs, *tangents, m=m, l=l, **options, blocks=blocks)


def _jvp_frozen(
    inputs: Tensors, tangents: Tensors, statistics: Tensors | None, options: Options, blocks: Any
) -> Tensor:
    """The tangent of o with m and l frozen, those given or the forward's."""
    m, l = statistics if statistics is not None else (None, None)
    return kernels.jvp_frozen(*inputs, *tangents, m=m, l=l, **options, blocks=blocks)[1]


def _hvp(inputs: Named, tangents: Named, cotangents: Named, options: Options, blocks: Any) -> Any:
    """(hq, hk, hv)."""
    return kernels.hvp(*inputs.values(), *cotangents.values(), *tangents.values(), **options, blocks=blocks)


def _hvp_central_difference(
    inputs: Tensors, tangents: Tensors, cotangents: Tensors, step: float, options: Options, blocks: Any
) -> Any:
    """(hq, hk, hv) by a central difference of VJPs."""
    return kernels.hvp_central_difference(*inputs, *cotangents, *tangents, step=step, **options, blocks=blocks)


def _fits(dtype: str, dims: Mapping[str, int]) -> Collection[str]:
    """The block configurations that every pass can run on this device."""
    return kernels.fitting(getattr(torch, dtype), dims["D"], dims["Dv"])


def _tiles(dtype: str, dims: Mapping[str, int], blocks: str, order: int) -> Mapping[str, int]:
    """Rows of a tile of queries and of one of keys."""
    width = padded_features(dims["D"], dims["Dv"])
    chosen = kernels.BLOCKS[blocks] if blocks else choose(order, getattr(torch, dtype), width, dims["T"], dims["M"])
    return {"T": chosen.query, "M": chosen.key}


FAMILY = sdpa
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
        extras={
            "stats": _stats,
            "backward": _backward,
            "jvp_from_statistics": _jvp_from_statistics,
            "jvp_frozen": _jvp_frozen,
            "hvp_central_difference": _hvp_central_difference,
            "compilations": compilations,
        },
    ),
)
