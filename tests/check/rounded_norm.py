"""RMSNorm in 16 bits that multiplies in 16 bits, forward and backward, as kernels of language models do."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.host import interpreter
from gradoracle.model.kernel import Kernel

if interpreter.explain_unavailable() is None:
    interpreter.activate()


@gradoracle.family(outputs=("y",), dtypes=("bfloat16",))
def rounded_norm(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    """x / rms(x) * w."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


@triton.jit
def _forward(X, W, Y, R, N, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    x16 = tl.load(X + row * N + n, mask=n < N, other=0.0)
    w = tl.load(W + n, mask=n < N, other=0.0)
    x = x16.to(tl.float32)
    r = 1 / tl.sqrt(tl.sum(x * x, 0) / N + 1e-6)
    tl.store(R + row, r)
    normed = (x * r).to(x16.dtype)
    y = normed * w
    tl.store(Y + row * N + n, y, mask=n < N)


@triton.jit
def _backward(X, W, R, G, DX, DW, N, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + row * N + n, mask=n < N, other=0.0).to(tl.float32)
    w = tl.load(W + n, mask=n < N, other=0.0)
    g = tl.load(G + row * N + n, mask=n < N, other=0.0)
    r = tl.load(R + row)
    m = (g * w).to(tl.float32)
    dx = r * m - r * r * r / N * tl.sum(m * x, 0) * x
    tl.store(DX + row * N + n, dx.to(DX.dtype.element_ty), mask=n < N)
    dw = g * (x * r).to(g.dtype)
    tl.store(DW + row * N + n, dw.to(tl.float32), mask=n < N)


class RoundedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        x, w = x.contiguous(), w.contiguous()
        y, r = torch.empty_like(x), torch.empty(len(x), dtype=torch.float32)
        _forward[(len(x),)](x, w, y, r, x.shape[1], triton.next_power_of_2(x.shape[1]))
        ctx.save_for_backward(x, w, r)
        return y

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor, Tensor]:
        x, w, r = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.empty(x.shape, dtype=torch.float32)
        block = triton.next_power_of_2(x.shape[1])
        _backward[(len(x),)](x, w, r, g[0].contiguous(), dx, dw, x.shape[1], block)
        return dx, dw.sum(0).to(w.dtype)


KERNEL = Kernel("rounded norm", "rounded_norm", RoundedNorm.apply, outside=True)
