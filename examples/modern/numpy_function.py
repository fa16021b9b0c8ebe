"""A function of NumPy in an autograd.Function: the running sum of exponentials, normalised.

gradoracle check examples/modern/numpy_function.py:right --dtype float32
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle


@gradoracle.family(dims={"B": gradoracle.sizes(1, 5), "N": gradoracle.sizes(1, 40)}, dtypes=("float32", "float64"))
def cumulative(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """The cumulated softmax of each row."""
    return torch.softmax(x, -1).cumsum(-1)


class _Cumulative(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bug):
        own = x.detach().numpy()
        e = np.exp(own - own.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)
        ctx.p, ctx.bug = p, bug
        return torch.from_numpy(p.cumsum(-1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        later = g.numpy()[:, ::-1].cumsum(-1)[:, ::-1]  # the cotangent of p
        axis = 0 if ctx.bug else -1
        return torch.from_numpy(ctx.p * (later - (later * ctx.p).sum(axis, keepdims=True))), None


@gradoracle.kernel(cumulative)
def right(x):
    return _Cumulative.apply(x, False)


@gradoracle.kernel(cumulative)
def wrong(x):
    """Its backward sums over the batch."""
    return _Cumulative.apply(x, True)
