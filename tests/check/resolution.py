"""Kernels in PyTorch that compute otherwise than their definitions: by formulas that float64 resolves less, or not."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.host import interpreter

if interpreter.explain_unavailable() is None:
    interpreter.activate()


@gradoracle.family(dims={"B": gradoracle.sizes(1, 4), "N": gradoracle.sizes(1, 8)}, dtypes=("float32",))
def steps(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return torch.nn.functional.softplus(x)


@gradoracle.family(dims={"B": gradoracle.sizes(1, 4), "N": gradoracle.sizes(1, 8)}, dtypes=("float32", "float64"))
def steps_in_float64(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return torch.nn.functional.softplus(x)


def _cancelling(x: Tensor) -> Tensor:
    return torch.where(x > 20, x, torch.log(1 + torch.exp(x.clamp_max(20))))


@gradoracle.kernel(steps)
def cancels(x: Tensor) -> Tensor:
    return _cancelling(x)


@gradoracle.kernel(steps)
def cancels_and_is_wrong_far_below(x: Tensor) -> Tensor:
    return torch.where(x < -25, 1.01, 1.0) * _cancelling(x)


class _SigmoidEverywhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return torch.nn.functional.softplus(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return g * torch.sigmoid(x) * ctx.factor, None


@gradoracle.kernel(steps)
def smooth_above_the_threshold(x: Tensor) -> Tensor:
    return _SigmoidEverywhere.apply(x, 1.0)  # type: ignore[no-any-return,no-untyped-call]


@gradoracle.kernel(steps)
def off_by_a_part_in_a_million(x: Tensor) -> Tensor:
    return _SigmoidEverywhere.apply(x, 1 + 1e-6)  # type: ignore[no-any-return,no-untyped-call]


@gradoracle.kernel(steps_in_float64)
def smooth_above_the_threshold_in_float64(x: Tensor) -> Tensor:
    return _SigmoidEverywhere.apply(x, 1.0)  # type: ignore[no-any-return,no-untyped-call]


@gradoracle.family(
    dims={"T": gradoracle.sizes(1, 8), "M": gradoracle.sizes(1, 8), "D": gradoracle.sizes(1, 4)}, dtypes=("float32",)
)
def attention(q: Float[Tensor, "T D"], k: Float[Tensor, "M D"], v: Float[Tensor, "M D"]) -> Float[Tensor, "T D"]:
    return torch.softmax(q @ k.mT * 0.6, -1) @ v


class _FromLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, slip: float) -> Tensor:
        s = q @ k.mT * 0.6
        m = s.amax(-1, keepdim=True)
        e = torch.exp(s - m)
        l = e.sum(-1, keepdim=True)
        ctx.save_for_backward(q, k, v, m + torch.log(l))
        ctx.slip = slip
        return e @ v / l

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, saved = ctx.saved_tensors
        p = torch.exp((q * 0.6) @ k.mT - saved) * (1 + ctx.slip)
        dp = g @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return 0.6 * ds @ k, 0.6 * ds.mT @ q, p.mT @ g, None


@gradoracle.kernel(attention)
def saves_log_sum_exp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _FromLogSumExp.apply(q, k, v, 0.0)  # type: ignore[no-any-return,no-untyped-call]


@gradoracle.kernel(attention)
def saves_log_sum_exp_and_slips(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _FromLogSumExp.apply(q, k, v, 1e-5)  # type: ignore[no-any-return,no-untyped-call]


@gradoracle.family(dims={"B": gradoracle.sizes(1, 4), "N": gradoracle.sizes(1, 8)}, dtypes=("float32",))
def quantised(x: Float[Tensor, "B N"], log_step: Float[Tensor, "B"]) -> Float[Tensor, "B N"]:
    step = torch.exp(log_step)[:, None]
    return (x / step).clamp(-8, 7) * step


@gradoracle.kernel(quantised)
def clamps(x: Tensor, log_step: Tensor) -> Tensor:
    step = torch.exp(log_step)[:, None]
    return torch.minimum(torch.maximum(x / step, torch.tensor(-8.0)), torch.tensor(7.0)) * step


@gradoracle.kernel(quantised)
def clamps_too_early(x: Tensor, log_step: Tensor) -> Tensor:
    step = torch.exp(log_step)[:, None]
    return torch.minimum(torch.maximum(x / step, torch.tensor(-7.0)), torch.tensor(7.0)) * step


def _rounding(x: Tensor, times: float) -> Tensor:
    """The definition, with so many times the error of rounding to bfloat16."""
    y = torch.nn.functional.softplus(x)
    return y + times * (y.bfloat16().to(y.dtype) - y)


@gradoracle.kernel(steps, claims=("forward",))
def rounds_to_bfloat16(x: Tensor) -> Tensor:
    return _rounding(x, 10.0)


@gradoracle.kernel(steps, claims=("forward",))
def rounds_to_less_than_bfloat16(x: Tensor) -> Tensor:
    return _rounding(x, 40.0)
