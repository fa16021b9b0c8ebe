"""A linear recurrence with complex poles: a Triton kernel on pairs of real numbers.

gradoracle check examples/modern/complex_recurrence.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle

SIZES = {"B": gradoracle.sizes(1, 2), "T": gradoracle.sizes(1, 8), "D": gradoracle.sizes(1, 12)}


@gradoracle.family(dims=SIZES)
def complex_recurrence(
    x: Float[Tensor, "B T D 2"], decay: Float[Tensor, "D"], angle: Float[Tensor, "D"]
) -> Float[Tensor, "B T D 2"]:
    """h_t = a h_{t-1} + x_t with a = sigmoid(decay) exp(i angle); the last dim has real and imaginary part."""
    a = torch.polar(torch.sigmoid(decay), angle)
    z, h, states = torch.view_as_complex(x), torch.zeros_like(a), []
    for t in range(x.shape[1]):
        h = a * h + z[:, t]
        states.append(h)
    return torch.view_as_real(torch.stack(states, 1))


@triton.jit
def _forward(X, A, H, T, D, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    ar, ai = tl.load(A + 2 * d, d < D, 0.0), tl.load(A + 2 * d + 1, d < D, 0.0)
    hr, hi = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for t in range(T):
        at = ((tl.program_id(0) * T + t) * D + d) * 2
        hr, hi = ar * hr - ai * hi, ar * hi + ai * hr
        hr += tl.load(X + at, d < D, 0.0).to(tl.float32)
        hi += tl.load(X + at + 1, d < D, 0.0).to(tl.float32)
        tl.store(H + at, hr, d < D)
        tl.store(H + at + 1, hi, d < D)


@triton.jit
def _backward(G, A, H, DX, DA, T, D, BUG: tl.constexpr, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    ar, ai = tl.load(A + 2 * d, d < D, 0.0), tl.load(A + 2 * d + 1, d < D, 0.0)
    ai = ai if BUG else -ai  # the adjoint of a product with a is one with its conjugate
    gr, gi = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    dar, dai = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for back in range(T):
        t = T - 1 - back
        at = ((tl.program_id(0) * T + t) * D + d) * 2
        gr, gi = ar * gr - ai * gi, ar * gi + ai * gr
        gr += tl.load(G + at, d < D, 0.0).to(tl.float32)
        gi += tl.load(G + at + 1, d < D, 0.0).to(tl.float32)
        tl.store(DX + at, gr.to(DX.dtype.element_ty), d < D)
        tl.store(DX + at + 1, gi.to(DX.dtype.element_ty), d < D)
        br = tl.load(H + at - 2 * D, (d < D) & (t > 0), 0.0)  # the state before
        bi = tl.load(H + at - 2 * D + 1, (d < D) & (t > 0), 0.0)
        dar, dai = dar + gr * br + gi * bi, dai + gi * br - gr * bi
    tl.store(DA + (tl.program_id(0) * D + d) * 2, dar, d < D)
    tl.store(DA + (tl.program_id(0) * D + d) * 2 + 1, dai, d < D)


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a, bug):
        x, a = x.contiguous(), a.contiguous()
        batch, t, d, _ = x.shape
        h = torch.empty(x.shape, dtype=torch.float32, device=x.device)
        _forward[(batch,)](x, a, h, t, d, triton.next_power_of_2(d))
        ctx.save_for_backward(a, h)
        ctx.bug, ctx.dtype = bug, x.dtype
        return h.to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        a, h = ctx.saved_tensors
        batch, t, d, _ = g.shape
        dx, da = torch.empty(g.shape, dtype=ctx.dtype), torch.empty(batch, d, 2)
        _backward[(batch,)](g.contiguous(), a, h, dx, da, t, d, ctx.bug, triton.next_power_of_2(d))
        return dx, da.sum(0), None


def _poles(decay, angle):
    size = torch.sigmoid(decay.float())
    return torch.stack([size * torch.cos(angle.float()), size * torch.sin(angle.float())], -1)


@gradoracle.kernel(complex_recurrence, claims=("forward", "vjp"))
def right(x, decay, angle):
    return _Recurrence.apply(x, _poles(decay, angle), False)


@gradoracle.kernel(complex_recurrence, claims=("forward", "vjp"))
def wrong(x, decay, angle):
    """Its backward multiplies by the pole and not by its conjugate."""
    return _Recurrence.apply(x, _poles(decay, angle), True)
