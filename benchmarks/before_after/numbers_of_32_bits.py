"""A family whose annotation has integers of 32 bits."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int32
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"T": gradoracle.sizes(1, 40), "D": gradoracle.sizes(1, 40)},
    domains={"index": gradoracle.IndexDomain("T")},
)
def rows(x: Float[Tensor, "T D"], index: Int32[Tensor, "N"]) -> Float[Tensor, "N D"]:
    """Rows by their numbers."""
    return x[index.long()]


@gradoracle.kernel(rows)
def numbers(x, index):
    return torch.index_select(x, 0, index)
