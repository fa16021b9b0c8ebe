"""A long causal convolution by the fast Fourier transform, in PyTorch.

gradoracle check examples/modern/fft_convolution.py:right --dtype float32
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle

SIZES = {"B": gradoracle.sizes(1, 3), "D": gradoracle.sizes(1, 3), "T": gradoracle.sizes(1, 24)}


@gradoracle.family(dims=SIZES, dtypes=("float32", "float64"))
def long_convolution(x: Float[Tensor, "B D T"], h: Float[Tensor, "D T"]) -> Float[Tensor, "B D T"]:
    """y_t = sum over s <= t of h_{t-s} x_s, by transforms of twice the length."""
    t = x.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(x, 2 * t) * torch.fft.rfft(h, 2 * t), 2 * t)[..., :t]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, h, bug):
        t = x.shape[-1]
        fx, fh = torch.fft.rfft(x, 2 * t), torch.fft.rfft(h, 2 * t)
        ctx.save_for_backward(fx, fh)
        ctx.bug = bug
        return torch.fft.irfft(fx * fh, 2 * t)[..., :t]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        fx, fh = ctx.saved_tensors
        t = g.shape[-1]
        fg = torch.fft.rfft(g, 2 * t)
        dx = torch.fft.irfft(fg * (fh if ctx.bug else fh.conj()), 2 * t)[..., :t]
        dh = torch.fft.irfft((fg * fx.conj()).sum(0), 2 * t)[..., :t]
        return dx, dh, None


@gradoracle.kernel(long_convolution)
def right(x, h):
    return _Convolution.apply(x, h, False)


@gradoracle.kernel(long_convolution)
def wrong(x, h):
    """The gradient of x lacks the conjugate."""
    return _Convolution.apply(x, h, True)
