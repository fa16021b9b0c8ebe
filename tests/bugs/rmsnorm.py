"""RMSNorm in Triton with a backward by hand: the correct one, and a released bug of what its backward writes to.

Arithmetic is in float32, gradients are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.mutation.bugs import Bugs


@gradoracle.family(dims={"B": gradoracle.sizes(1, 40), "N": gradoracle.sizes(1, 200)})
def rmsnorm(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    """x / rms(x) * w, along the last dim."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


@triton.jit
def _backward(X, W, G, DX, Partial, N, x_row, x_col, w_col, g_row, g_col, d_row, d_col, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    x = tl.load(X + row * x_row + n * x_col, mask=n < N, other=0.0).to(tl.float32)
    g = tl.load(G + row * g_row + n * g_col, mask=n < N, other=0.0).to(tl.float32)
    w = tl.load(W + n * w_col, mask=n < N, other=0.0).to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(x * x) / N + 1e-6)
    dx = r * g * w - x * (r * r * r) * (tl.sum(g * w * x) / N)
    tl.store(Partial + row * N + n, g * x * r, mask=n < N)
    tl.store(DX + row * d_row + n * d_col, dx.to(DX.dtype.element_ty), mask=n < N)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, buffer: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.buffer = buffer
        ctx.save_for_backward(x, w)
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * w.float()).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, w = ctx.saved_tensors
        dx, partial = ctx.buffer(g), torch.empty(x.shape, dtype=torch.float32)
        strides = (*x.stride(), *w.stride(), *g.stride(), *dx.stride())
        _backward[(x.shape[0],)](
            x, w, g, dx, partial, x.shape[1], *strides, BLOCK=triton.next_power_of_2(x.shape[1])
        )  # fmt: skip
        return dx, partial.sum(0).to(w.dtype), None


@gradoracle.kernel(rmsnorm)
def right(x, w):
    """The correct kernel: dx has memory of its own."""
    return _RMSNorm.apply(x, w, lambda g: torch.empty(g.shape, dtype=g.dtype))


BUGS = Bugs(right)


@BUGS.of("linkedin/Liger-Kernel#1305", "inputs_and_cotangents_are_unmodified", "access")
@gradoracle.kernel(rmsnorm)
def gradient_written_over_the_cotangent(x, w):
    """linkedin/Liger-Kernel#1305: the backward wrote dx into the memory of the upstream gradient.

    Where another consumer has the same gradient, it finds dx there.
    """
    return _RMSNorm.apply(x, w, lambda g: g)
