"""A family whose annotation has flags."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

import gradoracle


@gradoracle.family(dims={"T": gradoracle.sizes(1, 40), "D": gradoracle.sizes(1, 40)})
def chosen(x: Float[Tensor, "T D"], keep: Bool[Tensor, "T"]) -> Float[Tensor, "T D"]:
    """The rows that are kept, 0 elsewhere."""
    return torch.where(keep[:, None], x, 0.0)


@gradoracle.kernel(chosen)
def flags(x, keep):
    return x.masked_fill(~keep[:, None], 0.0)
