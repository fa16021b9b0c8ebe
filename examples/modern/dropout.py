"""Dropout by Philox: the definition computes the random numbers of Triton's tl.rand from the seed.

gradoracle check examples/modern/dropout.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle

LOW = 2**32 - 1


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """The high and the low 32 bits of a b, in int64: b in two halves, so that nothing overflows."""
    first, second = a * (b >> 16), a * (b & 0xFFFF)
    total = (second >> 16) + (first & 0xFFFF)
    return (first >> 16) + (total >> 16), ((total << 16) | (second & 0xFFFF)) & LOW


def philox(seed: Tensor, offset: Tensor) -> Tensor:
    """The first number of Philox 4x32-10 at counter (offset, 0, 0, 0) and key (seed, 0), which is tl.randint."""
    a, key = offset, (seed & LOW, seed >> 32)
    b = c = d = torch.zeros_like(offset)
    for turn in range(10):
        high_a, low_a = _product(0xD2511F53, a)
        high_c, low_c = _product(0xCD9E8D57, c)
        k0, k1 = (key[0] + turn * 0x9E3779B9) & LOW, (key[1] + turn * 0xBB67AE85) & LOW
        a, b, c, d = high_c ^ b ^ k0, low_c, high_a ^ d ^ k1, low_a
    return a


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 6), "N": gradoracle.sizes(1, 60)},
    domains={"seed": gradoracle.IndexDomain(2**31)},
)
def dropout(x: Float[Tensor, "M N"], seed: Int[Tensor, "1"], *, p: float = 0.5) -> Float[Tensor, "M N"]:
    """x / (1 - p) where tl.rand(seed, row N + column) > p, else 0."""
    offset = torch.arange(x.numel()).view(x.shape)
    bits = philox(seed, offset)
    signed = torch.where(bits >= 2**31, LOW - bits, bits)  # as an int32, -1 - x of negative ones
    keep = signed > p / 4.6566127342e-10  # tl.rand is its product with this number, in float32
    return torch.where(keep, x / (1 - p), 0.0)


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
