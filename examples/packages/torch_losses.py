r"""PyTorch's own losses.

gradoracle check examples/packages/torch_losses.py:cross_entropy --dtype float32
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle

ROWS = {"B": gradoracle.sizes(1, 16), "N": gradoracle.sizes(1, 80)}
IGNORED = -100


def class_weights(x):
    """1/2, 3/2, 5/2, 1/2, ...: PyTorch differentiates no weights."""
    return 0.5 + (torch.arange(x.shape[-1]) % 3).to(x.dtype)


@gradoracle.family(
    dims=ROWS,
    domains={"t": gradoracle.IndexDomain("N", ignore=IGNORED)},
    options={"smoothing": (0.0, 0.1), "mean": (True, False), "weighted": (False, True)},
)
def entropy(
    x: Float[Tensor, "B N"],
    t: Int[Tensor, "B"],
    *,
    smoothing: float = 0.0,
    mean: bool = True,
    weighted: bool = False,
) -> Float[Tensor, ""]:
    """The sum of the losses whose target is not ignored, or their mean by weight; NaN if there is none."""
    w = class_weights(x) if weighted else torch.ones_like(x[0])
    surprise = -torch.log_softmax(x, -1) * w
    chosen = torch.arange(x.shape[-1]) == t[:, None]
    kept = (t != IGNORED).to(x.dtype)
    losses = (1 - smoothing) * torch.where(chosen, surprise, 0.0).sum(-1) + smoothing * surprise.mean(-1)
    total = (losses * kept).sum()
    return total / torch.where(chosen, w, 0.0).sum() if mean else total


@gradoracle.kernel(entropy)
def cross_entropy(x, t, *, smoothing=0.0, mean=True, weighted=False):
    return F.cross_entropy(
        x,
        t,
        class_weights(x) if weighted else None,
        ignore_index=IGNORED,
        reduction="mean" if mean else "sum",
        label_smoothing=smoothing,
    )


@gradoracle.family(dims=ROWS)
def divergence(x: Float[Tensor, "B N"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """The terms p (log p - x) of a log p that is given."""
    return torch.exp(y) * (y - x)


@gradoracle.kernel(divergence)
def kl_div_log_target(x, y):
    return F.kl_div(x, y, reduction="none", log_target=True)


def probability(y):
    """Between 0.01 and 0.99."""
    return 0.01 + 0.98 * torch.sigmoid(y)


@gradoracle.family(dims=ROWS)
def divergence_of_probabilities(x: Float[Tensor, "B N"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """The terms p (log p - x)."""
    p = probability(y)
    return p * (torch.log(p) - x)


@gradoracle.kernel(divergence_of_probabilities)
def kl_div(x, y):
    return F.kl_div(x, probability(y), reduction="none")


def rounded_off(x, y, width):
    """|x - y| - width / 2 beyond the width, and (x - y)^2 / (2 width) within."""
    d = x - y
    size = d.abs()
    return torch.where(size < width, d.square() / (2 * width), size - width / 2) if width else size


@gradoracle.family(dims=ROWS, options={"beta": (1.0, 0.25, 0.0)})
def smooth_l1(x: Float[Tensor, "B N"], y: Float[Tensor, "B N"], *, beta: float = 1.0) -> Float[Tensor, ""]:
    return rounded_off(x, y, beta).mean()


@gradoracle.kernel(smooth_l1)
def smooth_l1_loss(x, y, *, beta=1.0):
    return F.smooth_l1_loss(x, y, beta=beta)


@gradoracle.family(dims=ROWS, options={"delta": (1.0, 0.25)})
def huber(x: Float[Tensor, "B N"], y: Float[Tensor, "B N"], *, delta: float = 1.0) -> Float[Tensor, ""]:
    return delta * rounded_off(x, y, delta).mean()


@gradoracle.kernel(huber)
def huber_loss(x, y, *, delta=1.0):
    return F.huber_loss(x, y, delta=delta)
