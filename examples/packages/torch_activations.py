r"""PyTorch's own activations.

gradoracle check examples/packages/torch_activations.py:gelu --dtype float32
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

import gradoracle

ROWS = {"B": gradoracle.sizes(1, 16), "N": gradoracle.sizes(1, 120)}


@gradoracle.family(dims=ROWS)
def gelu_by_erf(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """As PyTorch computes it; far below 0 it cancels, where erfc would not."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


@gradoracle.kernel(gelu_by_erf)
def gelu(x):
    return F.gelu(x)


@gradoracle.family(dims=ROWS)
def gelu_by_tanh(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """As PyTorch computes it; far below 0 it cancels, where x sigmoid(2 z) would not."""
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


@gradoracle.kernel(gelu_by_tanh)
def gelu_tanh(x):
    return F.gelu(x, approximate="tanh")


@gradoracle.family(dims=ROWS)
def sigmoid_weighted(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return x * torch.sigmoid(x)


@gradoracle.kernel(sigmoid_weighted)
def silu(x):
    return F.silu(x)


@gradoracle.family(dims=ROWS, options={"beta": (1.0, 2.0)})
def smooth_relu(x: Float[Tensor, "B N"], *, beta: float = 1.0) -> Float[Tensor, "B N"]:
    """log(1 + exp(beta x)) / beta, and x where beta x is above 20."""
    beyond = beta * x > 20
    return torch.where(beyond, x, torch.log1p(torch.exp(torch.where(beyond, 0.0, beta * x))) / beta)


@gradoracle.kernel(smooth_relu)
def softplus(x, *, beta=1.0):
    return F.softplus(x, beta)


@gradoracle.family(dims=ROWS)
def log_sigmoid(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """-log(1 + exp(-x)), without an exponential of a positive number."""
    below = x < 0
    small = torch.log1p(torch.exp(torch.where(below, x, -x)))
    return torch.where(below, x, 0.0) - small


@gradoracle.kernel(log_sigmoid)
def logsigmoid(x):
    return F.logsigmoid(x)
