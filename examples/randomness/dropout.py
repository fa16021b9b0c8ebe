"""Dropout whose mask is made again in backward: the definition computes the numbers of tl.rand from the seed.

gradoracle check examples/randomness/dropout.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 12), "N": gradoracle.sizes(1, 80)},
    options={"p": (0.5, 0.1)},
    domains={"seed": gradoracle.IndexDomain(2**31)},
    random=gradoracle.Randomness(seed="seed", drop="p", shown="out"),
)
def dropout(x: Float[Tensor, "M N"], seed: Int[Tensor, ""], *, p: float = 0.5) -> Float[Tensor, "M N"]:
    """x / (1 - p) where tl.rand(seed, m N + n) > p, else 0."""
    return torch.where(gradoracle.random(seed, 0, x.shape) > p, x / (1 - p), 0.0)


@triton.jit
def _scaled(X, Y, seed, first, p, SIZE, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, at < SIZE, 0.0).to(tl.float32)
    keep = tl.rand(seed, first + at) > p
    tl.store(Y + at, tl.where(keep, x / (1 - p), 0.0).to(Y.dtype.element_ty), at < SIZE)


def _drop(x, seed, p, first=0):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _scaled[(triton.cdiv(x.numel(), 64),)](x.contiguous(), y, seed, first, p, x.numel(), BLOCK=64)
    return y


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seed, p, first_in_backward):
        ctx.again = int(seed), p, first_in_backward
        return _drop(x, int(seed), p)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return _drop(g, *ctx.again), None, None, None


@gradoracle.kernel(dropout, deterministic=True)
def right(x, seed, *, p=0.5):
    """Dropout in Triton that makes its mask again in backward."""
    return _Dropout.apply(x, seed, p, 0)


@gradoracle.kernel(dropout, deterministic=True)
def wrong(x, seed, *, p=0.5):
    """Its backward counts its offsets from 1."""
    return _Dropout.apply(x, seed, p, 1)
