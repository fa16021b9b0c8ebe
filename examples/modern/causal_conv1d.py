"""A short causal convolution of each channel, with the state before and after it: a Triton kernel.

gradoracle check examples/modern/causal_conv1d.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle

SIZES = {
    "B": gradoracle.sizes(1, 3), "D": gradoracle.sizes(1, 5), "T": gradoracle.sizes(1, 30), "W": gradoracle.sizes(2, 4),
}  # fmt: skip


@gradoracle.family(dims=SIZES, outputs=("y", "last"))
def causal_conv1d(
    x: Float[Tensor, "B D T"], w: Float[Tensor, "D W"], state: Float[Tensor, "B D W-1"]
) -> tuple[Float[Tensor, "B D T"], Float[Tensor, "B D W-1"]]:
    """y_t = silu(sum over i of w_i x_{t - W + 1 + i}); x before its first step is the state."""
    whole = torch.cat([state, x], -1)
    t = x.shape[-1]
    y = sum(whole[..., i : i + t] * w[:, i, None] for i in range(w.shape[-1]))
    return torch.nn.functional.silu(y), whole[..., t:]


@triton.jit
def _forward(X, W, S, Y, LAST, D, T, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    t = tl.arange(0, BLOCK)
    y = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(WIDTH):
        at = t - (WIDTH - 1) + i
        x = tl.load(X + row * T + at, (at >= 0) & (t < T), 0.0).to(tl.float32)
        old = tl.load(S + row * (WIDTH - 1) + t + i, (at < 0) & (t < T), 0.0).to(tl.float32)
        y += tl.load(W + row % D * WIDTH + i).to(tl.float32) * (x + old)
        end = T - (WIDTH - 1) + i
        if i < WIDTH - 1:
            new = tl.load(X + row * T + end, end >= 0, 0.0)
            kept = tl.load(S + row * (WIDTH - 1) + T + i, end < 0, 0.0)
            tl.store(LAST + row * (WIDTH - 1) + i, tl.where(end >= 0, new, kept))
    tl.store(Y + row * T + t, (y * tl.sigmoid(y)).to(Y.dtype.element_ty), t < T)


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, state, bug):
        inputs = [each.contiguous() for each in (x, w, state)]
        b, d, t = x.shape
        y, last = torch.empty_like(inputs[0]), torch.empty_like(inputs[2])
        _forward[(b * d,)](*inputs, y, last, d, t, w.shape[1], triton.next_power_of_2(t))
        ctx.save_for_backward(x, w, state)  # not their copies, through which no second derivative passes
        ctx.bug = bug
        return y, last

    @staticmethod
    def backward(ctx, g, g_last):  # in PyTorch, so that it can be differentiated again
        x, w, state = ctx.saved_tensors
        t, width = x.shape[2], w.shape[1]
        whole = torch.cat([state, x], -1).float()
        views = whole.unfold(-1, width, 1)  # [B D T W]
        y = (views * w[:, None].float()).sum(-1)
        s = torch.sigmoid(y)
        dy = g.float() * (s + y * s * (1 - s))
        dw = (dy[..., None] * views).sum((0, 2))
        padded = torch.nn.functional.pad(dy, (width - 1, width - 1)).unfold(-1, width, 1)  # [B D T+W-1 W]
        d_whole = (padded * w.flip(1)[:, None].float()).sum(-1)
        if not ctx.bug:
            d_whole = d_whole + torch.nn.functional.pad(g_last.float(), (t, 0))
        return d_whole[..., width - 1 :].to(x.dtype), dw.to(w.dtype), d_whole[..., : width - 1].to(state.dtype), None


@gradoracle.kernel(causal_conv1d)
def right(x, w, state):
    return _Conv.apply(x, w, state, False)


@gradoracle.kernel(causal_conv1d)
def wrong(x, w, state):
    """Its backward forgets the cotangent of the last state."""
    return _Conv.apply(x, w, state, True)
