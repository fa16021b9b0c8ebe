r"""Mamba's selective scan (arXiv 2312.00752).

    gradoracle check examples/recurrences/selective_scan.py:right --dim T=4096

A Triton kernel takes one step after the other, for all channels side by side; gradients are computed by the same kernel
from the last step to the first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad, softplus

from gradoracle import family, kernel, scan, sizes


@family(dims={"B": sizes(1, 2), "T": sizes(1, 300, asked=1 << 20), "D": sizes(1, 9), "N": sizes(1, 8)})
def selective_scan(
    u: Float[Tensor, "B T D"], delta: Float[Tensor, "B T D"], a: Float[Tensor, "D N"],
    b: Float[Tensor, "B T N"], c: Float[Tensor, "B T N"],
) -> Float[Tensor, "B T D"]:  # fmt: skip
    """h_t c_t, where h_t = exp(d_t A) h_{t-1} + d_t u_t b_t, A = -exp(a) and d_t = softplus(delta_t)."""

    def step(h, x):  # [B D N]
        u, d, b, c = x
        h = torch.exp(-d[..., None] * a.exp()) * h + (d * u)[..., None] * b[:, None]
        return h, (h * c[:, None]).sum(-1)

    return scan(step, u.new_zeros(len(u), *a.shape), (u, softplus(delta), b, c), dim=1)[1]


@triton.jit
def _recurrence(A, X, H, steps, size, BLOCK: tl.constexpr):
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, h = tl.program_id(0).to(tl.int64) * steps * size + n, tl.zeros((BLOCK,), tl.float32)
    for _ in range(steps):
        h = tl.load(A + at, mask=n < size) * h + tl.load(X + at, mask=n < size)
        tl.store(H + at, h, mask=n < size)
        at += size


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, x, block):
        """h [B T D N], where h_t = a_t h_{t-1} + x_t."""
        h, size, ctx.block = torch.empty(x.shape, device=x.device), x[0, 0].numel(), block
        _recurrence[len(x), triton.cdiv(size, 128)](a.contiguous(), x.contiguous(), h, x.shape[1], size, BLOCK=128)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx, dh):
        a, h = ctx.saved_tensors
        later = a.roll(-1, 1)  # the gate of the next step
        later[:, ctx.block - 1 :: ctx.block] = 0
        dx = _Recurrence.apply(later.flip(1), dh.flip(1), 1 << 40).flip(1)
        return dx * pad(h, (0, 0, 0, 0, 1, -1)), dx, None


@kernel(selective_scan)
def right(u, delta, a, b, c, block=1 << 40):
    """Float32 inside."""
    d = softplus(delta.float())[..., None]
    h = _Recurrence.apply(torch.exp(-d * a.float().exp()), d * u.float()[..., None] * b.float()[:, :, None], block)
    return (h * c.float()[:, :, None]).sum(-1).to(u.dtype)


@kernel(selective_scan)
def wrong(u, delta, a, b, c):
    """Its backward begins anew with each block of 64 steps, as if nothing came after it: T > 64."""
    return right(u, delta, a, b, c, block=64)
