"""Residual dropout whose numbers no definition knows: the kernel reveals the mask, and is judged given it.

gradoracle check examples/randomness/revealed_mask.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 12), "N": gradoracle.sizes(1, 60)},
    options={"p": (0.3, 0.1)},
    domains={"seed": gradoracle.IndexDomain(2**31)},
    random=gradoracle.Randomness(seed="seed", drop="p", shown="mask"),
)
def residual_dropout(
    x: Float[Tensor, "M N"],
    w: Float[Tensor, "N"],
    r: Float[Tensor, "M N"],
    seed: Int[Tensor, ""],
    mask: Bool[Tensor, "M N"],
    *,
    p: float = 0.3,
) -> Float[Tensor, "M N"]:
    """r + mask x w / (1 - p)."""
    return r + torch.where(mask, x * w / (1 - p), 0.0)


@triton.jit
def _kept(seed, row, n, p):
    """A hash of seed, row and column by integer products and shifts; its upper 24 bits against p."""
    h = (seed.to(tl.uint32) ^ (row.to(tl.uint32) * 0x9E3779B9)) + n.to(tl.uint32) * 0x85EBCA6B
    h = (h ^ (h >> 16)) * 0x7FEB352D
    h = (h ^ (h >> 15)) * 0x846CA68B
    h = h ^ (h >> 16)
    return (h >> 8).to(tl.float32) >= p * 16777216.0


@triton.jit
def _forward(X, W, R, Y, seed, p, N, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + row * N + n, n < N, 0.0).to(tl.float32)
    w = tl.load(W + n, n < N, 0.0).to(tl.float32)
    r = tl.load(R + row * N + n, n < N, 0.0).to(tl.float32)
    y = r + tl.where(_kept(seed, row, n, p), x * w / (1 - p), 0.0)
    tl.store(Y + row * N + n, y.to(Y.dtype.element_ty), n < N)


@triton.jit
def _backward(X, W, G, DX, DW, seed, p, N, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + row * N + n, n < N, 0.0).to(tl.float32)
    w = tl.load(W + n, n < N, 0.0).to(tl.float32)
    g = tl.load(G + row * N + n, n < N, 0.0).to(tl.float32)
    g = tl.where(_kept(seed, row + SHIFT, n, p), g / (1 - p), 0.0)
    tl.store(DX + row * N + n, (g * w).to(DX.dtype.element_ty), n < N)
    tl.store(DW + row * N + n, g * x, n < N)  # float32, one row a program; summed afterwards


@triton.jit
def _show(MASK, seed, p, N, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(MASK + row * N + n, _kept(seed, row, n, p).to(tl.int8), n < N)


class _ResidualDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, r, seed, p, shift):
        x, w, r = x.contiguous(), w.contiguous(), r.contiguous()
        y, block = torch.empty_like(x), triton.next_power_of_2(x.shape[1])
        _forward[(x.shape[0],)](x, w, r, y, int(seed), p, x.shape[1], BLOCK=block)
        ctx.save_for_backward(x, w)
        ctx.random = int(seed), p, shift
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x, w), (seed, p, shift) = ctx.saved_tensors, ctx.random
        dx, dw = torch.empty_like(x), torch.empty(x.shape, dtype=torch.float32, device=x.device)
        block = triton.next_power_of_2(x.shape[1])
        _backward[(x.shape[0],)](
            x, w, g.contiguous(), dx, dw, seed, p, x.shape[1], SHIFT=shift, BLOCK=block
        )  # fmt: skip
        return dx, dw.sum(0).to(w.dtype), g, None, None, None


def mask_of(x, w, r, seed, *, p=0.3):
    """What the kernel keeps, written by its own generator."""
    mask = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    _show[(x.shape[0],)](mask, int(seed), p, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return mask


@gradoracle.kernel(residual_dropout, deterministic=True, reveals={"mask": mask_of})
def right(x, w, r, seed, *, p=0.3):
    """Residual dropout by a generator of its own."""
    return _ResidualDropout.apply(x, w, r, seed, p, 0)


@gradoracle.kernel(residual_dropout, deterministic=True, reveals={"mask": mask_of})
def wrong(x, w, r, seed, *, p=0.3):
    """Its backward makes the mask of the next row."""
    return _ResidualDropout.apply(x, w, r, seed, p, 1)
