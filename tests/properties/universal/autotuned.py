"""Autotuned Triton kernels: one of whose configurations is wrong, and one that adds up what its trials add."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle


@gradoracle.family(outputs=("o",))
def halve(x: Float[Tensor, "N"], w: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    """x w / 2."""
    return x * w / 2


@triton.autotune([triton.Config({"BLOCK": 16, "SLIP": 1.0}), triton.Config({"BLOCK": 32, "SLIP": 1.001})], key=["n"])
@triton.jit
def product(x, w, o, n, BLOCK: tl.constexpr, SLIP: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=0.0) * tl.load(w + i, mask=i < n, other=0.0) * 0.5 * SLIP
    tl.store(o + i, value, mask=i < n)


def launched(x, w):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x, w = x.contiguous(), w.contiguous()
    product[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, w, out, x.numel())
    return out


class Halve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return launched(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return launched(g, w), launched(g, x)


def call(x, w):
    return Halve.apply(x, w)


@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def sums(x, w, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=0.0) * tl.load(w + i, mask=i < n, other=0.0) * 0.5
    tl.atomic_add(o + i, value, mask=i < n)


class Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        sums[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x.contiguous(), w.contiguous(), out, x.numel())
        return out

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w / 2, g * x / 2


def added_up(x, w):
    return Added.apply(x, w)
