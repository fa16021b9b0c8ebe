r"""Losses of entmax: the Fenchel-Young losses of its mappings, one for each row.

pip install --no-deps entmax==1.3
gradoracle check examples/packages/entmax_losses.py:sparsemax_loss --dtype float32
"""

from __future__ import annotations

import entmax
import torch
from entmax_terms import entmax as entmax_of
from entmax_terms import normmax, power_sum
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle

STEPS = 70  # as in entmax_mappings.py
ROWS = {"B": gradoracle.sizes(1, 6), "N": gradoracle.sizes(1, 40)}
TARGETS = {"t": gradoracle.IndexDomain("N")}


def regret(x, p, t):
    """<p, x> - x_t."""
    chosen = torch.where(torch.arange(x.shape[-1]) == t[:, None], x, 0.0)
    return (p * x - chosen).sum(-1)


def entmax_loss(x, t, alpha):
    p = entmax_of(x, alpha)
    return (1 - power_sum(p, alpha)) / (alpha * (alpha - 1)) + regret(x, p, t)


@gradoracle.family(dims=ROWS, domains=TARGETS)
def loss_of_alpha_two(x: Float[Tensor, "B N"], t: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    return entmax_loss(x, t, 2.0)


@gradoracle.kernel(loss_of_alpha_two)
def sparsemax_loss(x, t):
    return entmax.sparsemax_loss(x, t)


@gradoracle.kernel(loss_of_alpha_two)
def sparsemax_bisect_loss(x, t):
    return entmax.sparsemax_bisect_loss(x, t)


@gradoracle.family(dims=ROWS, domains=TARGETS)
def loss_of_alpha_one_and_a_half(x: Float[Tensor, "B N"], t: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    return entmax_loss(x, t, 1.5)


@gradoracle.kernel(loss_of_alpha_one_and_a_half)
def entmax15_loss(x, t):
    return entmax.entmax15_loss(x, t)


@gradoracle.family(dims=ROWS, domains=TARGETS, options={"alpha": (1.5, 1.25, 2.0)})
def loss_of_any_alpha(x: Float[Tensor, "B N"], t: Int[Tensor, "B"], *, alpha: float = 1.5) -> Float[Tensor, "B"]:
    return entmax_loss(x, t, alpha)


@gradoracle.kernel(loss_of_any_alpha)
def entmax_bisect_loss(x, t, *, alpha=1.5):
    return entmax.entmax_bisect_loss(x, t, alpha, STEPS)


@gradoracle.kernel(loss_of_any_alpha)
def entmax_bisect_loss_of_rows(x, t, *, alpha=1.5):
    return entmax.entmax_bisect_loss(x, t, torch.full((x.shape[0], 1), alpha, dtype=x.dtype), STEPS)


@gradoracle.family(dims=ROWS, domains=TARGETS, options={"alpha": (2.0, 1.5, 3.0)})
def loss_of_any_norm(x: Float[Tensor, "B N"], t: Int[Tensor, "B"], *, alpha: float = 2.0) -> Float[Tensor, "B"]:
    p = normmax(x, alpha)
    return 1 - power_sum(p, alpha) ** (1 / alpha) + regret(x, p, t)


@gradoracle.kernel(loss_of_any_norm)
def normmax_bisect_loss(x, t, *, alpha=2.0):
    return entmax.normmax_bisect_loss(x, t, alpha, STEPS)
