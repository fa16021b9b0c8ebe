"""The definition of scaled dot-product attention."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


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
