"""Kernels in PyTorch: correct ones that were called wrong, and mistakes that were not seen or not told apart."""

from __future__ import annotations

import torch
from gradoracle.properties.semicrf import FAMILY as SEMICRF
from jaxtyping import Float
from torch import Tensor

import gradoracle


@gradoracle.family(dims={"N": gradoracle.sizes(1, 40), "D": gradoracle.sizes(1, 40)})
def square(x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """x^2."""
    return x * x


@gradoracle.family(dims={"N": gradoracle.sizes(1, 8), "D": gradoracle.sizes(100, 400)})
def normed(x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """Each row, of values like those of 30 x, over its root mean square."""
    x = 30.0 * x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3)


@gradoracle.kernel(normed, dtypes=("float16",))
def sum_of_squares_in_float16(x):
    x = 30.0 * x
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + 1e-3)  # 0 where the sum overflows


class _NoSecondOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            return 2.0 * x * g


@gradoracle.kernel(square)
def second_derivatives_silently_zero(x):
    return _NoSecondOrder.apply(x)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2.0 * x * g


@gradoracle.kernel(square)
def refuses_a_double_backward(x):
    return _Once.apply(x)


def log_sum(x: Tensor, dim: int) -> Tensor:
    """The log of the sum of exp(x); -inf, with gradient 0, where all are."""
    top = x.detach().amax(dim, keepdim=True)
    top = torch.where(top == -torch.inf, 0.0, top)
    total = torch.exp(x - top).sum(dim)
    none = total == 0
    return torch.where(none, -torch.inf, torch.log(torch.where(none, 1.0, total)) + top.squeeze(dim))


@gradoracle.kernel(SEMICRF, dims={"T": gradoracle.sizes(60, 100), "K": gradoracle.sizes(1, 4)}, dtypes=("float32",))
def recursion_without_norms(cum_scores, transition, duration_bias, lengths):
    """log Z by the plain recursion in float32, in the log domain."""
    batch, ends, labels = cum_scores.shape
    durations = duration_bias.shape[0]
    tables = transition.expand(durations, labels, labels)
    alphas = [cum_scores.new_zeros(batch, labels)]
    for t in range(1, ends):
        arriving = []
        for k in range(1, min(durations, t) + 1):
            scores = cum_scores[:, t] - cum_scores[:, t - k] + duration_bias[k - 1]
            arriving.append(log_sum(alphas[t - k][:, :, None] + tables[k - 1], 1) + scores)
        alphas.append(log_sum(torch.stack(arriving), 0))
    last = torch.stack(alphas, 1).gather(1, lengths.long()[:, None, None].expand(batch, 1, labels))[:, 0]
    return log_sum(last, -1)
