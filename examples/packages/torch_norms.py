r"""Norms of PyTorch: `torch.nn.functional`.

gradoracle check examples/packages/torch_norms.py:layer_norm --dtype float32
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from jaxtyping import Float
from torch import Tensor

import gradoracle

EPS = 1e-5
IMAGES = {"B": gradoracle.sizes(1, 6), "C": gradoracle.sizes(1, 6), "N": gradoracle.sizes(2, 40)}


def standardised(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """X without its mean, over its standard deviation."""
    centred = x - x.mean(dims, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(dims, keepdim=True) + EPS)


@gradoracle.family(dims={"B": gradoracle.sizes(1, 12), "N": gradoracle.sizes(2, 100)})
def layer(x: Float[Tensor, "B N"], w: Float[Tensor, "N"], b: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    """Over the features of each row."""
    return standardised(x, (-1,)) * w + b


@gradoracle.kernel(layer)
def layer_norm(x, w, b):
    return functional.layer_norm(x, w.shape, w, b, EPS)


@gradoracle.family(dims=IMAGES)
def batch(x: Float[Tensor, "B C N"], w: Float[Tensor, "C"], b: Float[Tensor, "C"]) -> Float[Tensor, "B C N"]:
    """Over the members and positions of each channel, as in training."""
    return standardised(x, (0, 2)) * w[:, None] + b[:, None]


@gradoracle.kernel(batch)
def batch_norm(x, w, b):
    return functional.batch_norm(x, None, None, w, b, training=True, eps=EPS)


@gradoracle.family(dims=IMAGES)
def instance(x: Float[Tensor, "B C N"], w: Float[Tensor, "C"], b: Float[Tensor, "C"]) -> Float[Tensor, "B C N"]:
    """Over the positions of each channel of each member."""
    return standardised(x, (2,)) * w[:, None] + b[:, None]


@gradoracle.kernel(instance)
def instance_norm(x, w, b):
    return functional.instance_norm(x, weight=w, bias=b, eps=EPS)
