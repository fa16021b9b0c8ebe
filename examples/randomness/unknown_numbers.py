"""Dropout whose numbers nobody can compute again: the definition is the mean over seeds, and the output shows the mask.

gradoracle check examples/randomness/unknown_numbers.py:right --dtype float32
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
    options={"p": (0.25, 0.1)},
    domains={"seed": gradoracle.IndexDomain(2**31)},
    random=gradoracle.Randomness(seed="seed", drop="p", shown="out", mean=True),
)
def gated_dropout(
    x: Float[Tensor, "M N"], w: Float[Tensor, "N"], seed: Int[Tensor, ""], *, p: float = 0.25
) -> Float[Tensor, "M N"]:
    """x w: the mean over seeds of x w / (1 - p) with probability 1 - p, and 0 with probability p."""
    return x * w


@triton.jit
def _kept(seed, at, p):
    h = at.to(tl.uint32) * 0x9E3779B9 + seed.to(tl.uint32) * 0x85EBCA6B
    h = (h ^ (h >> 16)) * 0x7FEB352D
    h = (h ^ (h >> 15)) * 0x846CA68B
    return ((h ^ (h >> 16)) >> 8).to(tl.float32) >= p * 16777216.0


@triton.jit
def _forward(X, W, Y, seed, rate, p, N, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + row * N + n, n < N, 0.0).to(tl.float32)
    w = tl.load(W + n, n < N, 0.0).to(tl.float32)
    y = tl.where(_kept(seed, row * N + n, rate), x * w / (1 - p), 0.0)
    tl.store(Y + row * N + n, y.to(Y.dtype.element_ty), n < N)


@triton.jit
def _backward(X, W, G, DX, DW, seed, rate, p, N, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + row * N + n, n < N, 0.0).to(tl.float32)
    w = tl.load(W + n, n < N, 0.0).to(tl.float32)
    g = tl.load(G + row * N + n, n < N, 0.0).to(tl.float32)
    g = tl.where(_kept(seed, row * N + n, rate), g / (1 - p), 0.0)
    tl.store(DX + row * N + n, (g * w).to(DX.dtype.element_ty), n < N)
    tl.store(DW + row * N + n, g * x, n < N)  # float32, one row a program; summed afterwards


class _GatedDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, seed, rate, p):
        x, w = x.contiguous(), w.contiguous()
        y = torch.empty_like(x)
        ctx.save_for_backward(x, w)
        ctx.random = int(seed), rate, p
        _forward[(x.shape[0],)](x, w, y, *ctx.random, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.empty(x.shape, dtype=torch.float32, device=x.device)
        block = triton.next_power_of_2(x.shape[1])
        _backward[(x.shape[0],)](x, w, g.contiguous(), dx, dw, *ctx.random, x.shape[1], BLOCK=block)
        return dx, dw.sum(0).to(w.dtype), None, None, None


@gradoracle.kernel(gated_dropout, deterministic=True)
def right(x, w, seed, *, p=0.25):
    """Dropout by a generator of its own."""
    return _GatedDropout.apply(x, w, seed, p, p)


@gradoracle.kernel(gated_dropout, deterministic=True)
def wrong(x, w, seed, *, p=0.25):
    """It keeps elements with probability p, and scales as if it kept them with 1 - p."""
    return _GatedDropout.apply(x, w, seed, 1 - p, p)
