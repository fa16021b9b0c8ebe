"""Annotations of one family each: an expression of dims, flags, integers of 32 bits, the parameters of a module."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor

import gradoracle


@gradoracle.family(dims={"T": gradoracle.sizes(1, 40), "D": gradoracle.sizes(1, 40)})
def gated(x: Float[Tensor, "T 2*D"]) -> Float[Tensor, "T D"]:
    """a sigmoid(b), of the halves a and b of each row."""
    a, b = x.chunk(2, -1)
    return a * torch.sigmoid(b)


@gradoracle.kernel(gated)
def halves(x):
    return torch.nn.functional.glu(x, -1)


@gradoracle.family(dims={"T": gradoracle.sizes(1, 40), "D": gradoracle.sizes(1, 40)})
def chosen(x: Float[Tensor, "T D"], keep: Bool[Tensor, "T"]) -> Float[Tensor, "T D"]:
    """The rows that are kept, 0 elsewhere."""
    return torch.where(keep[:, None], x, 0.0)


@gradoracle.kernel(chosen)
def flags(x, keep):
    return x.masked_fill(~keep[:, None], 0.0)


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
