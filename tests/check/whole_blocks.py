"""A Triton kernel for rows of a power of two elements, which does not say so."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle


@gradoracle.family(dims={"B": gradoracle.sizes(1, 6), "N": gradoracle.sizes(1, 40)})
def scaled(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    return x * w


@triton.jit
def _scaled(X, W, Y, N: tl.constexpr):
    n = tl.arange(0, N)
    at = tl.program_id(0) * N + n
    tl.store(Y + at, tl.load(X + at) * tl.load(W + n))


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        x, w = x.contiguous(), w.contiguous()
        y = torch.empty_like(x)
        _scaled[(x.shape[0],)](x, w, y, x.shape[1])
        ctx.save_for_backward(x, w)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0)


@gradoracle.kernel(scaled)
def undeclared(x, w):
    return _Scaled.apply(x, w)
