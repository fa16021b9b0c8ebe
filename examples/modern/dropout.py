"""Dropout by Philox: the definition has the random numbers of Triton's tl.rand.

gradoracle check examples/modern/dropout.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 6), "N": gradoracle.sizes(1, 60)},
    domains={"seed": gradoracle.Seed()},
)
def dropout(x: Float[Tensor, "M N"], seed: Int[Tensor, ""], *, p: float = 0.5) -> Float[Tensor, "M N"]:
    """x / (1 - p) where tl.rand(seed, row N + column) > p, else 0."""
    return torch.where(gradoracle.random(seed, 0, x.shape) > p, x / (1 - p), 0.0)


@triton.jit
def _scaled(X, Y, seed, p, SIZE, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, at < SIZE, 0.0).to(tl.float32)
    keep = tl.rand(seed, tl.arange(0, BLOCK) if BUG else at) > p
    tl.store(Y + at, tl.where(keep, x / (1 - p), 0.0).to(Y.dtype.element_ty), at < SIZE)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seed, p, bug):
        ctx.plan = int(seed), p, x.numel()
        ctx.bug = bug
        return _Dropout._apply(x, *ctx.plan, False)

    @staticmethod
    def _apply(x, seed, p, size, bug):
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        _scaled[(triton.cdiv(size, 32),)](x.contiguous(), y, seed, p, size, bug, 32)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return _Dropout._apply(g, *ctx.plan, ctx.bug), None, None, None


@gradoracle.kernel(dropout)
def right(x, seed, *, p=0.5):
    return _Dropout.apply(x, seed, p, False)


@gradoracle.kernel(dropout)
def wrong(x, seed, *, p=0.5):
    """Its backward takes the same random numbers in each block."""
    return _Dropout.apply(x, seed, p, True)
