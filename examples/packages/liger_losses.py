r"""Losses of Liger: `liger_kernel.transformers.functional`.

    pip install --no-deps liger-kernel==0.8.5
    gradoracle check examples/packages/liger_losses.py:cross_entropy --dtype float32

Liger's losses compute the gradient in the forward pass and write it over the logits: the adapters pass a copy.
"""

from __future__ import annotations

import math

import liger_kernel.transformers.functional as liger
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

import gradoracle

ROWS = {"B": gradoracle.sizes(1, 12), "V": gradoracle.sizes(2, 120)}
LINEAR = {"B": gradoracle.sizes(1, 20), "V": gradoracle.sizes(2, 60), "H": gradoracle.sizes(1, 30)}
TARGETS = {"t": gradoracle.IndexDomain("V")}
TERMS = {"smoothing": (0.0, 0.1), "z": (0.0, 0.01), "softcap": (0.0, 30.0)}


def losses(x: Tensor, t: Tensor, smoothing: float, z: float, softcap: float) -> Tensor:
    """Cross entropy [B] of logits [B V], smoothed over all classes, plus z times the square of the log-sum-exp."""
    if softcap:
        x = softcap * torch.tanh(x / softcap)
    lse = torch.logsumexp(x, -1)
    chosen = torch.where(torch.arange(x.shape[-1]) == t[:, None], x, 0.0).sum(-1)
    return (1 - smoothing) * (lse - chosen) + smoothing * (lse - x.mean(-1)) + z * lse.square()


@gradoracle.family(dims=ROWS, domains=TARGETS, options={**TERMS, "ignored": (-100, 1), "mean": (True, False)})
def entropy(
    x: Float[Tensor, "B V"],
    t: Int[Tensor, "B"],
    *,
    smoothing: float = 0.0,
    z: float = 0.0,
    softcap: float = 0.0,
    ignored: int = -100,
    mean: bool = True,
) -> Float[Tensor, ""]:
    """The sum or mean of the losses whose target is not ignored; 0 if there is none."""
    kept = (t != ignored).to(x.dtype)
    total = (losses(x, t, smoothing, z, softcap) * kept).sum()
    return total / torch.clamp(kept.sum(), min=1) if mean else total


@gradoracle.kernel(entropy)
def cross_entropy(x, t, *, smoothing=0.0, z=0.0, softcap=0.0, ignored=-100, mean=True):
    return liger.liger_cross_entropy(
        x.clone(),
        t,
        ignore_index=ignored,
        reduction="mean" if mean else "sum",
        label_smoothing=smoothing,
        lse_square_scale=z,
        softcap=softcap or None,
    )


@gradoracle.family(dims=LINEAR, domains=TARGETS, options=TERMS)
def linear_entropy(
    x: Float[Tensor, "B H"],
    w: Float[Tensor, "V H"],
    t: Int[Tensor, "B"],
    b: Float[Tensor, "V"],
    *,
    smoothing: float = 0.0,
    z: float = 0.0,
    softcap: float = 0.0,
) -> Float32[Tensor, ""]:
    """The mean of the losses of the logits x w^T + b."""
    return losses(x @ w.mT + b, t, smoothing, z, softcap).mean()


@gradoracle.kernel(linear_entropy)
def fused_linear_cross_entropy(x, w, t, b, *, smoothing=0.0, z=0.0, softcap=0.0):
    return liger.liger_fused_linear_cross_entropy(
        x, w, t, b, label_smoothing=smoothing, lse_square_scale=z, softcap=softcap or None
    )


@gradoracle.family(dims=ROWS, options={"log": (True, False)})
def divergence(x: Float[Tensor, "B V"], y: Float[Tensor, "B V"], *, log: bool = True) -> Float32[Tensor, "B V"]:
    """The terms p (log p - x) with p = softmax(y), given as log p or as p, whose logarithm is not below log 1e-10."""
    log_p = torch.log_softmax(y, -1)
    p = torch.exp(log_p)
    return p * ((log_p if log else torch.log(torch.clamp(p, min=1e-10))) - x)


@gradoracle.kernel(divergence, no_gradient=("y",))
def kl_div(x, y, *, log=True):
    log_p = torch.log_softmax(y.float(), -1)
    return liger.liger_kl_div(x.float(), log_p if log else log_p.exp(), reduction="none", log_target=log)


@gradoracle.family(dims=LINEAR, options={"temperature": (1.0, 2.0)})
def linear_divergence(
    x: Float[Tensor, "B H"], w: Float[Tensor, "V H"], y: Float[Tensor, "B V"], *, temperature: float = 1.0
) -> Float32[Tensor, ""]:
    """The mean of KL(p, softmax(x w^T / temperature)) with p = softmax(y)."""
    log_p = torch.log_softmax(y, -1)
    log_q = torch.log_softmax(x @ w.mT / temperature, -1)
    return (torch.exp(log_p) * (log_p - log_q)).sum() / x.shape[0]


@gradoracle.kernel(linear_divergence, no_gradient=("y",))
def fused_linear_kl_div(x, w, y, *, temperature=1.0):
    return liger.liger_fused_linear_kl_div(x, w, torch.softmax(y.float(), -1), temperature=temperature)


def jensen_shannon(log_q: Tensor, log_p: Tensor, beta: float) -> Tensor:
    """beta KL(p, m) + (1 - beta) KL(q, m) with m = beta p + (1 - beta) q, divided by the rows; KL at 0 and 1."""
    if beta == 0.0:
        terms = torch.exp(log_p) * (log_p - log_q)
    elif beta == 1.0:
        terms = torch.exp(log_q) * (log_q - log_p)
    else:
        log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log(1 - beta))
        terms = beta * torch.exp(log_p) * (log_p - log_m) + (1 - beta) * torch.exp(log_q) * (log_q - log_m)
    return terms.sum() / log_q.shape[0]


@gradoracle.family(dims=ROWS, options={"beta": (0.5, 0.1, 0.0, 1.0)})
def jensen(x: Float[Tensor, "B V"], y: Float[Tensor, "B V"], *, beta: float = 0.5) -> Float32[Tensor, ""]:
    """Of the distributions softmax(x) and softmax(y)."""
    return jensen_shannon(torch.log_softmax(x, -1), torch.log_softmax(y, -1), beta)


@gradoracle.kernel(jensen, no_gradient=("y",))
def jsd(x, y, *, beta=0.5):
    return liger.liger_jsd(torch.log_softmax(x.float(), -1), torch.log_softmax(y.float(), -1), beta=beta)


@gradoracle.family(dims=LINEAR, options={"temperature": (1.0, 2.0), "beta": (0.5, 0.0, 1.0)})
def linear_jensen(
    x: Float[Tensor, "B H"],
    w: Float[Tensor, "V H"],
    y: Float[Tensor, "B H"],
    u: Float[Tensor, "V H"],
    *,
    temperature: float = 1.0,
    beta: float = 0.5,
) -> Float32[Tensor, ""]:
    """Of the distributions of the logits x w^T and y u^T, divided by the temperature."""
    log_q, log_p = (torch.log_softmax(a @ b.mT / temperature, -1) for a, b in ((x, w), (y, u)))
    return jensen_shannon(log_q, log_p, beta)


@gradoracle.kernel(linear_jensen, no_gradient=("y", "u"))
def fused_linear_jsd(x, w, y, u, *, temperature=1.0, beta=0.5):
    return liger.liger_fused_linear_jsd(x, w, y, u, jsd_beta=beta, temperature=temperature)


@gradoracle.family(dims=ROWS)
def variation(x: Float[Tensor, "B V"], y: Float[Tensor, "B V"]) -> Float32[Tensor, ""]:
    """Half the sum of |x - y|, divided by the rows."""
    return 0.5 * (x - y).abs().sum() / x.shape[0]


@gradoracle.kernel(variation, no_gradient=("y",))
def tvd(x, y):
    return liger.liger_tvd(x, y, reduction="batchmean")


@gradoracle.family(dims=ROWS, domains=TARGETS, options={"ignored": (-100, 1)})
def variation_of_labels(
    x: Float[Tensor, "B V"], y: Float[Tensor, "B V"], t: Int[Tensor, "B"], *, ignored: int = -100
) -> Float32[Tensor, ""]:
    """Half the sum of |x - y| over the rows whose label is not ignored, divided by their number; 0 if there is none."""
    kept = (t != ignored).to(x.dtype)
    return 0.5 * ((x - y).abs().sum(-1) * kept).sum() / torch.clamp(kept.sum(), min=1)


@gradoracle.kernel(variation_of_labels, no_gradient=("y",))
def tvd_of_labels(x, y, t, *, ignored=-100):
    return liger.liger_tvd(x, y, t, reduction="batchmean", ignore_index=ignored)
