"""SDPA: definition, domain of cases, laws and kernels of scaled dot-product attention (DESIGN 9)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gradoracle.dims import sizes
from gradoracle.family import family
from gradoracle.kernel import Kernel
from gradoracle.kernels import sdpa as kernels


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
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)  # [B H T M], natural log units
    if not causal:
        return torch.softmax(s, -1) @ v
    queries, keys = q.shape[-2], k.shape[-2]
    visible = torch.arange(keys)[None, :] <= torch.arange(queries)[:, None] + (keys - queries)
    sees = visible.any(-1, keepdim=True)
    s = torch.where(sees, torch.where(visible, s, -torch.inf), 0.0)  # no row of -inf alone reaches the softmax
    return torch.where(sees, torch.softmax(s, -1), 0.0) @ v
