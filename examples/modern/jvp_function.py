"""An autograd.Function with a forward mode of its own (``jvp``) for the logarithm of cosh.

gradoracle check examples/modern/jvp_function.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from triton.language.extra import libdevice

import gradoracle


@gradoracle.family(dims={"B": gradoracle.sizes(1, 9), "N": gradoracle.sizes(1, 60)})
def log_cosh(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """log cosh x = |x| + log1p(exp(-2 |x|)) - log 2."""
    return torch.log(torch.cosh(x))


@triton.jit
def _forward(X, Y, SIZE, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.abs(tl.load(X + at, at < SIZE, 0.0).to(tl.float32))
    s = libdevice.sinh(tl.minimum(x, 1.0) * 0.5)
    y = tl.where(x < 1.0, libdevice.log1p(2 * s * s), x + libdevice.log1p(tl.exp(-2 * x)) - 0.6931471805599453)
    tl.store(Y + at, y.to(Y.dtype.element_ty), at < SIZE)


@triton.jit
def _scaled(X, G, Y, SIZE, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, at < SIZE, 0.0).to(tl.float32)
    slope = libdevice.tanh(x)
    g = tl.load(G + at, at < SIZE, 0.0).to(tl.float32)
    tl.store(Y + at, (g * (slope * slope if BUG else slope)).to(Y.dtype.element_ty), at < SIZE)


def _times_slope(x, g, bug):
    x, g = x.contiguous(), g.contiguous()
    y = torch.empty_like(x)
    _scaled[(triton.cdiv(y.numel(), 64),)](x, g, y, y.numel(), bug, 64)
    return y


class _LogCosh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bug):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        ctx.bug = bug
        x = x.contiguous()
        y = torch.empty_like(x)
        _forward[(triton.cdiv(y.numel(), 64),)](x, y, y.numel(), 64)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return _times_slope(*ctx.saved_tensors, g, False), None

    @staticmethod
    def jvp(ctx, t, _):
        return _times_slope(*ctx.saved_tensors, t, ctx.bug)


@gradoracle.kernel(log_cosh)
def right(x):
    return _LogCosh.apply(x, False)


@gradoracle.kernel(log_cosh)
def wrong(x):
    """Its forward mode multiplies by the square of the slope."""
    return _LogCosh.apply(x, True)
