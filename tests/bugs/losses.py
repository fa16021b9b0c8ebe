"""Losses of two kinds, a divergence and a score with its entropy: the correct kernels, and released bugs.

Arithmetic is in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

import gradoracle
from gradoracle.mutation.bugs import Bugs

LOG_2 = 0.6931471805599453
DIMS = {"B": gradoracle.sizes(1, 40), "V": gradoracle.sizes(2, 100)}


@gradoracle.family(outputs=("loss",), dims=DIMS, options={"temperature": (1.0, 0.01)})
def jensen_shannon(
    x: Float[Tensor, "B V"], y: Float[Tensor, "B V"], *, temperature: float = 1.0
) -> Float32[Tensor, "B"]:
    """Half of KL(p, m) and half of KL(q, m), with p and q of the logits x and y over temperature and m their mean."""
    p, q = torch.log_softmax(x / temperature, -1), torch.log_softmax(y / temperature, -1)
    mixture = torch.logsumexp(torch.stack([p, q]), 0) - LOG_2
    return 0.5 * (torch.exp(p) * (p - mixture) + torch.exp(q) * (q - mixture)).sum(-1)


class Divergence:
    """The correct kernel; the bug overrides the log of the mixture."""

    def log_mixture(self, p: Tensor, q: Tensor) -> Tensor:
        """log((e^p + e^q) / 2)."""
        return torch.logsumexp(torch.stack([p, q]), 0) - LOG_2

    def __call__(self, x: Tensor, y: Tensor, temperature: float) -> Tensor:
        p, q = (torch.log_softmax(logits.float() / temperature, -1) for logits in (x, y))
        mixture = self.log_mixture(p, q)
        return 0.5 * (torch.exp(p) * (p - mixture) + torch.exp(q) * (q - mixture)).sum(-1)


@gradoracle.kernel(jensen_shannon)
def divergence(x, y, *, temperature=1.0):
    """The correct kernel."""
    return Divergence()(x, y, temperature)


BUGS = Bugs(divergence)


class _LogOfProbabilities(Divergence):
    def log_mixture(self, p: Tensor, q: Tensor) -> Tensor:
        return torch.log(0.5 * (torch.exp(p) + torch.exp(q)))


@BUGS.of("linkedin/Liger-Kernel#862", "finite_where_the_truth_is_finite", "range")
@gradoracle.kernel(jensen_shannon)
def log_of_underflowed_probabilities(x, y, *, temperature=1.0):
    """linkedin/Liger-Kernel#862: the log of the mixture was taken of probabilities, which may both be 0.

    The loss of a confident pair was NaN: 0 times the difference to -inf.
    """
    return _LogOfProbabilities()(x, y, temperature)


@gradoracle.family(outputs=("score", "entropy"), dims=DIMS, domains={"chosen": gradoracle.IndexDomain("V")})
def selected(
    logits: Float[Tensor, "B V"], chosen: Int[Tensor, "B"]
) -> tuple[Float32[Tensor, "B"], Float32[Tensor, "B"]]:
    """The log of the chosen class's share, and the entropy of all shares, row by row."""
    shares = torch.log_softmax(logits, -1)
    score = torch.where(torch.arange(logits.shape[-1]) == chosen[:, None], shares, 0.0).sum(-1)
    return score, -(torch.exp(shares) * shares).sum(-1)


class Selection:
    """The correct backward; the bug overrides what becomes of the cotangent of the entropy."""

    def of_entropy(self, p: Tensor, logs: Tensor, entropy: Tensor, g: Tensor) -> Tensor:
        return -g * p * (logs + entropy)


class _Selected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Selection, logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        logs = torch.log_softmax(logits.float(), -1)
        entropy = -(torch.exp(logs) * logs).sum(-1)
        ctx.own, ctx.dtype = own, logits.dtype
        ctx.save_for_backward(logs, chosen, entropy)
        return logs.gather(-1, chosen[:, None])[:, 0], entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g_score: Tensor, g_entropy: Tensor) -> tuple[Any, ...]:
        logs, chosen, entropy = ctx.saved_tensors
        p, hit = torch.exp(logs), (torch.arange(logs.shape[-1]) == chosen[:, None]).float()
        found = g_score[:, None] * (hit - p) + ctx.own.of_entropy(p, logs, entropy[:, None], g_entropy[:, None])
        return None, found.to(ctx.dtype), None


@gradoracle.kernel(selected)
def score_and_entropy(logits, chosen):
    """The correct kernel."""
    return _Selected.apply(Selection(), logits, chosen)


class _EntropyUnused(Selection):
    def of_entropy(self, p: Tensor, logs: Tensor, entropy: Tensor, g: Tensor) -> Tensor:
        return torch.zeros_like(p)


@BUGS.of("huggingface/trl#6625", "vjp_of_a_cotangent_on_each_output_alone", "term", right=score_and_entropy)
@gradoracle.kernel(selected)
def cotangent_of_the_entropy_ignored(logits, chosen):
    """huggingface/trl#6625: the backward accepted the gradient of the entropy and did not use it."""
    return _Selected.apply(_EntropyUnused(), logits, chosen)
