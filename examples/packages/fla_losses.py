r"""Losses, short convolution, token shift and rotary embedding of fla-core.

pip install --no-deps fla-core==0.6.0 einops
gradoracle check examples/packages/fla_losses.py:cross_entropy_loss --dtype float32
"""

from __future__ import annotations

import fla.modules.causal_conv1d as convolutions
import fla.modules.fused_cross_entropy.ops as cross_entropies
import fla.modules.fused_kl_div.ops as divergences
import fla.modules.fused_linear_cross_entropy.ops as linear_cross_entropies
import fla.modules.grpo as policies
import fla.modules.rotary.ops as rotaries
import fla.modules.token_shift as shifts
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor
from torch.nn.functional import silu

import gradoracle

CLASSES = {"B": gradoracle.sizes(1, 12), "V": gradoracle.sizes(2, 120), "D": gradoracle.choices(16, 32)}
TARGETS = {"target": gradoracle.IndexDomain("V")}


def chosen(x, target):
    """x at the target along the last dim."""
    return torch.where(torch.arange(x.shape[-1], device=x.device) == target[..., None], x, 0.0).sum(-1)


def surprise(logits, target, smoothing, square):
    """Cross entropy of each row with smoothed labels, plus ``square`` times the log-sum-exp squared."""
    lse = torch.logsumexp(logits, -1)
    return lse - (1 - smoothing) * chosen(logits, target) - smoothing * logits.mean(-1) + square * lse * lse


@gradoracle.family(
    dims={name: CLASSES[name] for name in ("B", "V")},
    domains=TARGETS,
    options={"smoothing": (0.0, 0.1), "scale": (1.0, 0.5), "square": (0.0, 0.01), "softcap": (None, 2.0)},
)
def cross_entropy(
    logits: Float[Tensor, "B V"],
    target: Int[Tensor, "B"],
    *,
    smoothing: float = 0.0,
    scale: float = 1.0,
    square: float = 0.0,
    softcap: float | None = None,
) -> Float32[Tensor, "B"]:
    logits = scale * logits
    return surprise(logits if softcap is None else softcap * torch.tanh(logits / softcap), target, smoothing, square)


@gradoracle.kernel(cross_entropy)
def cross_entropy_loss(logits, target, *, smoothing=0.0, scale=1.0, square=0.0, softcap=None):
    return cross_entropies.cross_entropy_loss(logits, target, smoothing, scale, square, softcap)[0]


@gradoracle.family(
    dims=CLASSES,
    domains=TARGETS,
    options={"smoothing": (0.0, 0.1), "scale": (1.0, 0.5), "softcap": (None, 2.0), "reduction": ("mean", "sum")},
)
def linear_cross_entropy(
    x: Float[Tensor, "B D"],
    target: Int[Tensor, "B"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"],
    *,
    smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    reduction: str = "mean",
) -> Float32[Tensor, ""]:
    logits = scale * (x @ weight.mT + bias)
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    loss = surprise(logits, target, smoothing, 0.0)
    return loss.mean() if reduction == "mean" else loss.sum()


@gradoracle.kernel(linear_cross_entropy)
def fused_linear_cross_entropy_loss(
    x, target, weight, bias, *, smoothing=0.0, scale=1.0, softcap=None, reduction="mean"
):
    return linear_cross_entropies.fused_linear_cross_entropy_loss(
        x, target, weight, bias, label_smoothing=smoothing, logit_scale=scale, logit_softcapping=softcap,
        reduction=reduction,
    )  # fmt: skip


@gradoracle.family(dims=CLASSES)
def kl_div(
    x: Float[Tensor, "B D"],
    teacher: Float[Tensor, "B D"],
    weight: Float[Tensor, "V D"],
    teacher_weight: Float[Tensor, "V D"],
) -> Float32[Tensor, ""]:
    """The mean over rows of KL(teacher || student)."""
    log_p, log_q = torch.log_softmax(x @ weight.mT, -1), torch.log_softmax(teacher @ teacher_weight.mT, -1)
    return (torch.exp(log_q) * (log_q - log_p)).sum() / x.shape[0]


@gradoracle.kernel(kl_div, no_gradient=("teacher", "teacher_weight"))
def fused_kl_div_loss(x, teacher, weight, teacher_weight):
    return divergences.fused_kl_div_loss(x, teacher.detach(), weight, teacher_weight.detach())


@gradoracle.family(
    dims={"B": gradoracle.sizes(1, 3), "T": gradoracle.sizes(1, 12), "V": gradoracle.sizes(2, 120)},
    domains={"ids": gradoracle.IndexDomain("V")},
)
def grpo_divergence(
    logits: Float[Tensor, "B T+1 V"], reference: Float32[Tensor, "B T"], ids: Int[Tensor, "B T"]
) -> Float32[Tensor, "B T"]:
    """The KL penalty, times 0.1, of the policy's loss.

    The advantages are 0: their term has the value of one function and the gradient of another, by a stopped gradient.
    """
    r = reference - chosen(torch.log_softmax(logits[:, :-1], -1), ids)
    return 0.1 * (torch.exp(r) - r - 1)


@gradoracle.kernel(grpo_divergence, no_gradient=("reference",))
def fused_grpo_loss(logits, reference, ids):
    return policies.fused_grpo_loss(logits, reference, ids, reference.new_zeros(len(ids)), 0.1)


@gradoracle.family(
    dims={
        "B": gradoracle.sizes(1, 3),
        "T": gradoracle.sizes(1, 90),
        "C": gradoracle.sizes(1, 40),
        "W": gradoracle.choices(2, 3, 4),
    },
    outputs=("y", "final_state"),
    options={"activation": (None, "swish")},
)
def convolution(
    x: Float[Tensor, "B T C"],
    weight: Float[Tensor, "C W"],
    bias: Float[Tensor, "C"],
    residual: Float[Tensor, "B T C"],
    initial_state: Float[Tensor, "B C W"],
    *,
    activation: str | None = None,
) -> tuple[Float[Tensor, "B T C"], Float[Tensor, "B C W"]]:
    """y_t = sum over w of weight_w x_{t-W+1+w}, with W values of x before the first in the state."""
    width, length = weight.shape[-1], x.shape[1]
    past = torch.cat([initial_state, x.mT], -1)  # [B C W+T]
    y = sum(past[..., w + 1 : w + 1 + length] * weight[:, w, None] for w in range(width)) + bias[:, None]
    return (silu(y) if activation else y).mT + residual, past[..., -width:]


@gradoracle.kernel(convolution)
def causal_conv1d(x, weight, bias, residual, initial_state, *, activation=None):
    return convolutions.causal_conv1d(
        x, weight, bias, residual, initial_state, output_final_state=True, activation=activation
    )


@gradoracle.family(
    dims={"B": gradoracle.sizes(1, 3), "T": gradoracle.sizes(1, 90), "C": gradoracle.sizes(1, 40)},
    outputs=("y", "last"),
)
def shift(
    x: Float[Tensor, "B T C"], cache: Float[Tensor, "B C"]
) -> tuple[Float[Tensor, "B T C"], Float[Tensor, "B C"]]:
    """x_{t-1} - x_t, with the value before the first given."""
    return torch.cat([cache[:, None], x[:, :-1]], 1) - x, x[:, -1]


@gradoracle.kernel(shift)
def token_shift(x, cache):
    y, last = shifts.token_shift(x, cache=cache, output_cache=True)
    return y, last.view(cache.shape)


@gradoracle.family(
    dims={
        "B": gradoracle.sizes(1, 3),
        "T": gradoracle.sizes(1, 70),
        "H": gradoracle.sizes(1, 3),
        "R": gradoracle.choices(4, 8),
        "S": gradoracle.choices(1, 6),
    },
    options={"interleaved": (False, True)},
)
def rotation(
    x: Float[Tensor, "B T H R+R+S"],
    cosine: Float[Tensor, "T R"],
    sine: Float[Tensor, "T R"],
    *,
    interleaved: bool = False,
) -> Float[Tensor, "B T H R+R+S"]:
    """Turns pairs of the first 2 R channels, neighbours or halves; the other S stay."""
    turns, cosine, sine = cosine.shape[-1], cosine[:, None], sine[:, None]
    if interleaved:
        a, b = x[..., 0 : 2 * turns : 2], x[..., 1 : 2 * turns : 2]
    else:
        a, b = x[..., :turns], x[..., turns : 2 * turns]
    turned = a * cosine - b * sine, a * sine + b * cosine
    turned = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat([turned, x[..., 2 * turns :]], -1)


@gradoracle.kernel(rotation, no_gradient=("cosine", "sine"))
def rotary_embedding(x, cosine, sine, *, interleaved=False):
    return rotaries.rotary_embedding(x, cosine, sine, interleaved)
