"""Batch norm with running statistics, which the kernel changes in place: a Triton kernel with one program a channel.

gradoracle check examples/modern/batch_norm.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle

STATE = {"running_mean": "next_mean", "running_var": "next_var"}


@gradoracle.family(
    dims={"B": gradoracle.sizes(2, 40), "C": gradoracle.sizes(1, 6)}, outputs=("y", "next_mean", "next_var")
)
def batch_norm(
    x: Float[Tensor, "B C"], w: Float[Tensor, "C"], b: Float[Tensor, "C"],
    running_mean: Float[Tensor, "C"], running_var: Float[Tensor, "C"],
) -> tuple[Float[Tensor, "B C"], Float[Tensor, "C"], Float[Tensor, "C"]]:  # fmt: skip
    """The normalised x, and the running statistics after it: 9/10 of the old and 1/10 of the new."""
    var, mean = torch.var_mean(x, 0, correction=0)
    y = (x - mean) * torch.rsqrt(var + 1e-5) * w + b
    unbiased = var * (x.shape[0] / (x.shape[0] - 1))
    after = [torch.lerp(old, new, 0.1).detach() for old, new in ((running_mean, mean), (running_var, unbiased))]
    return y, *after


@triton.jit
def _forward(X, W, B, M, V, Y, MEAN, R, ROWS, C, BUG: tl.constexpr, BLOCK: tl.constexpr):
    c = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    x = tl.load(X + n * C + c, n < ROWS, 0.0).to(tl.float32)
    mean = tl.sum(x) / ROWS
    centred = tl.where(n < ROWS, x - mean, 0.0)
    total = tl.sum(centred * centred)
    r = 1 / tl.sqrt(total / ROWS + 1e-5)
    y = centred * r * tl.load(W + c).to(tl.float32) + tl.load(B + c).to(tl.float32)
    tl.store(Y + n * C + c, y.to(Y.dtype.element_ty), n < ROWS)
    tl.store(MEAN + c, mean)
    tl.store(R + c, r)
    var = total / (ROWS if BUG else ROWS - 1)
    tl.store(M + c, (tl.load(M + c).to(tl.float32) * 0.9 + mean * 0.1).to(M.dtype.element_ty))
    tl.store(V + c, (tl.load(V + c).to(tl.float32) * 0.9 + var * 0.1).to(V.dtype.element_ty))


@triton.jit
def _backward(X, W, MEAN, R, G, DX, DW, DB, ROWS, C, BLOCK: tl.constexpr):
    c = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    r = tl.load(R + c)
    x = (tl.load(X + n * C + c, n < ROWS, 0.0).to(tl.float32) - tl.load(MEAN + c)) * r
    g = tl.load(G + n * C + c, n < ROWS, 0.0).to(tl.float32)
    dw, db = tl.sum(g * x), tl.sum(g)
    dx = (g - (db + x * dw) / ROWS) * r * tl.load(W + c).to(tl.float32)
    tl.store(DX + n * C + c, dx.to(DX.dtype.element_ty), n < ROWS)
    tl.store(DW + c, dw.to(DW.dtype.element_ty))
    tl.store(DB + c, db.to(DB.dtype.element_ty))


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, running_mean, running_var, bug):
        x, w, b = x.contiguous(), w.contiguous(), b.contiguous()
        rows, channels = x.shape
        y, stats = torch.empty_like(x), torch.empty(2, channels, device=x.device)
        block = triton.next_power_of_2(rows)
        _forward[(channels,)](x, w, b, running_mean, running_var, y, *stats, rows, channels, bug, block)
        ctx.save_for_backward(x, w, stats)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w, stats = ctx.saved_tensors
        rows, channels = x.shape
        dx, dw, db = torch.empty_like(x), torch.empty_like(w), torch.empty_like(w)
        block = triton.next_power_of_2(rows)
        _backward[(channels,)](x, w, *stats, g.contiguous(), dx, dw, db, rows, channels, block)
        return dx, dw, db, None, None, None


def _step(x, w, b, running_mean, running_var, bug):
    assert running_mean.is_contiguous() and running_var.is_contiguous(), "running statistics must be contiguous"
    return _BatchNorm.apply(x, w, b, running_mean, running_var, bug)


@gradoracle.kernel(batch_norm, state=STATE)
def right(x, w, b, running_mean, running_var):
    return _step(x, w, b, running_mean, running_var, False)


@gradoracle.kernel(batch_norm, state=STATE)
def wrong(x, w, b, running_mean, running_var):
    """The running variance is the biased one."""
    return _step(x, w, b, running_mean, running_var, True)
