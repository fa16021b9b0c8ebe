"""A family and a Triton kernel in one file: ``gradoracle check examples/rmsnorm.py``.

The definition is the mathematics of RMSNorm; the kernel has its own backward. Nothing else is needed: shapes with
tails, extreme values, budgets and every universal property come with it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle


@gradoracle.family(dims={"B": gradoracle.sizes(1, 40), "N": gradoracle.sizes(1, 1000)})
def rmsnorm(x: Float[Tensor, "B N"], w: Float[Tensor, "N"], *, eps: float = 1e-6) -> Float[Tensor, "B N"]:
    """x / rms(x) * w, along the last dim."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


@triton.jit
def _forward(X, W, Y, R, x_row, x_col, w_col, y_row, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK).to(tl.int64)
    x = tl.load(X + row * x_row + n * x_col, mask=n < N, other=0.0).to(tl.float32)  # [BLOCK]
    w = tl.load(W + n * w_col, mask=n < N, other=0.0).to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(x * x) / N + eps)
    tl.store(R + row, r)
    tl.store(Y + row * y_row + n, (x * r * w).to(Y.dtype.element_ty), mask=n < N)


@triton.jit
def _backward(X, W, R, G, DX, DW, x_row, x_col, w_col, g_row, g_col, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK).to(tl.int64)
    x = tl.load(X + row * x_row + n * x_col, mask=n < N, other=0.0).to(tl.float32)  # [BLOCK]
    g = tl.load(G + row * g_row + n * g_col, mask=n < N, other=0.0).to(tl.float32)
    w = tl.load(W + n * w_col, mask=n < N, other=0.0).to(tl.float32)
    r = tl.load(R + row)
    gw = g * w
    dx = r * gw - x * (r * r * r) * (tl.sum(gw * x) / N)
    tl.store(DX + row * N + n, dx.to(DX.dtype.element_ty), mask=n < N)
    tl.store(DW + row * N + n, g * x * r, mask=n < N)  # float32 partials, one row a program; summed afterwards


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        rows, columns = x.shape
        y = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
        r = torch.empty((rows,), dtype=torch.float32, device=x.device)
        block = triton.next_power_of_2(columns)
        _forward[(rows,)](
            x, w, y, r, *x.stride(), *w.stride(), y.stride(0), columns, eps, BLOCK=block
        )  # fmt: skip
        ctx.save_for_backward(x, w, r)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w, r = ctx.saved_tensors
        rows, columns = x.shape
        dx = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
        partial = torch.empty((rows, columns), dtype=torch.float32, device=x.device)
        block = triton.next_power_of_2(columns)
        _backward[(rows,)](
            x, w, r, g, dx, partial, *x.stride(), *w.stride(), *g.stride(), columns, BLOCK=block
        )  # fmt: skip
        return dx, partial.sum(0).to(w.dtype), None


@gradoracle.kernel(rmsnorm, deterministic=True)
def triton_rmsnorm(x, w, *, eps=1e-6):
    """RMSNorm in Triton, float32 inside, outputs rounded once."""
    return _RMSNorm.apply(x, w, eps)
