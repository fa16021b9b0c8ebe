"""A family whose annotation has an expression of dims."""

from __future__ import annotations

import torch
from jaxtyping import Float
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
