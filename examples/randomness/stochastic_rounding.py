"""Stochastic rounding of float32 to bfloat16: up with a probability that is the distance to the lower neighbour.

gradoracle check examples/randomness/stochastic_rounding.py:right
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"N": gradoracle.sizes(1, 400)},
    dtypes=("bfloat16",),
    domains={"seed": gradoracle.IndexDomain(2**31)},
    random=gradoracle.Randomness(seed="seed", rounded="out"),
)
def stochastic_rounding(x: Float32[Tensor, "N"], seed: Int[Tensor, ""]) -> Float[Tensor, "N"]:
    """x, which is the mean of its roundings over all seeds; the gradient passes through."""
    return x.clone()


@triton.jit
def _round(X, Y, seed, N, BITS: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(X + n, n < N, 0.0).to(tl.int32, bitcast=True)  # the upper 16 bits are the bfloat16 towards 0
    noise = tl.randint(seed, n).to(tl.int32, bitcast=True) & BITS
    up = (word + noise) & -65536
    tl.store(Y + n, up.to(tl.float32, bitcast=True).to(tl.bfloat16), n < N)


class _Rounding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seed, bits):
        y = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
        _round[(triton.cdiv(x.numel(), 128),)](x.contiguous(), y, int(seed), x.numel(), BITS=bits, BLOCK=128)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g.float(), None, None


@gradoracle.kernel(stochastic_rounding, deterministic=True, dtypes=("bfloat16",))
def right(x, seed):
    """The upper 16 bits of x plus 16 random bits."""
    return _Rounding.apply(x, seed, 0xFFFF)


@gradoracle.kernel(stochastic_rounding, deterministic=True, dtypes=("bfloat16",))
def wrong(x, seed):
    """It adds 15 random bits of 16, so it truncates more often than it should."""
    return _Rounding.apply(x, seed, 0x7FFF)
