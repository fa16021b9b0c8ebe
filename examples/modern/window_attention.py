"""Attention with a sliding window, ALiBi and grouped heads, which saves its log-sum-exp: a Triton kernel.

gradoracle check examples/modern/window_attention.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle

WINDOW = 5


@gradoracle.family(
    dims={
        "B": gradoracle.sizes(1, 2), "H": gradoracle.choices(4), "G": gradoracle.choices(1, 2),
        "T": gradoracle.sizes(1, 30), "D": gradoracle.choices(16, 32),
    },
    divides={"G": "H"},
)  # fmt: skip
def window_attention(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B G T D"], v: Float[Tensor, "B G T D"]
) -> Float[Tensor, "B H T D"]:
    """softmax(q k^T / sqrt(D) - 2^-h (i - j)) v over i - WINDOW <= j <= i; heads h in groups share k and v."""
    heads = q.shape[1]
    k, v = (each.repeat_interleave(heads // k.shape[1], 1) for each in (k, v))
    place = torch.arange(q.shape[2])
    back = place[:, None] - place
    slope = torch.tensor([2.0**-h for h in range(heads)], dtype=q.dtype)[:, None, None]
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 - slope * back
    return torch.softmax(torch.where((back >= 0) & (back <= WINDOW), s, -torch.inf), -1) @ v


@triton.jit
def _scores(q, k, t, T, h, scale, WINDOW: tl.constexpr):
    back = t[:, None] - t
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale - tl.exp2(-h.to(tl.float32)) * back
    return tl.where((back >= 0) & (back <= WINDOW) & (t < T)[:, None], s, float("-inf"))


@triton.jit
def _forward(Q, K, V, O, LSE, H, G, T, scale, D: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr):
    b, h = tl.program_id(0), tl.program_id(1)
    t, d = tl.arange(0, BLOCK), tl.arange(0, D)
    inside, at = (t < T)[:, None], t[:, None] * D + d
    of_q, of_k = (b * H + h) * T * D + at, (b * G + h // (H // G)) * T * D + at
    q, k, v = tl.load(Q + of_q, inside, 0.0), tl.load(K + of_k, inside, 0.0), tl.load(V + of_k, inside, 0.0)
    s = _scores(q, k, t, T, h, scale, WINDOW)
    m = tl.maximum(tl.max(s, 1), -1e30)
    p = tl.exp(s - m[:, None])
    l = tl.where(t < T, tl.sum(p, 1), 1.0)
    tl.store(O + of_q, (tl.dot(p.to(v.dtype), v, input_precision="ieee") / l[:, None]).to(O.dtype.element_ty), inside)
    tl.store(LSE + (b * H + h) * T + t, m + tl.log(l), t < T)


@triton.jit
def _backward(
    Q, K, V, LSE, DO, DQ, DK, DV, H, G, T, scale,
    BUG: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    b, g = tl.program_id(0), tl.program_id(1)
    t, d = tl.arange(0, BLOCK), tl.arange(0, D)
    inside, at = (t < T)[:, None], t[:, None] * D + d
    of_k = (b * G + g) * T * D + at
    k, v = tl.load(K + of_k, inside, 0.0), tl.load(V + of_k, inside, 0.0)
    dk, dv = tl.zeros((BLOCK, D), tl.float32), tl.zeros((BLOCK, D), tl.float32)
    for h in range(g * (H // G), (g + 1) * (H // G)):
        of_q = (b * H + h) * T * D + at
        q, do = tl.load(Q + of_q, inside, 0.0), tl.load(DO + of_q, inside, 0.0)
        lse = tl.load(LSE + (b * H + h) * T + t, t < T, 0.0)
        p = tl.exp(_scores(q, k, t, T, g * (H // G) if BUG else h, scale, WINDOW) - lse[:, None])
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - tl.sum(p * dp, 1)[:, None]) * scale
        dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision="ieee")
        dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
        tl.store(DQ + of_q, tl.dot(ds.to(k.dtype), k, input_precision="ieee").to(DQ.dtype.element_ty), inside)
    tl.store(DK + of_k, dk.to(DK.dtype.element_ty), inside)
    tl.store(DV + of_k, dv.to(DV.dtype.element_ty), inside)


class _Window(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bug):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        (b, h, t, d), g = q.shape, k.shape[1]
        o, lse = torch.empty_like(q), torch.empty(b, h, t, device=q.device)
        ctx.sizes, ctx.blocks = (h, g, t, d**-0.5), (d, max(16, triton.next_power_of_2(t)), WINDOW)
        _forward[b, h](q, k, v, o, lse, *ctx.sizes, *ctx.blocks)
        ctx.save_for_backward(q, k, v, lse)
        ctx.bug = bug
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do):
        q, k, v, lse = ctx.saved_tensors
        gradients = [torch.empty_like(each) for each in (q, k, v)]
        grid = (q.shape[0], k.shape[1])
        _backward[grid](q, k, v, lse, do.contiguous(), *gradients, *ctx.sizes, ctx.bug, *ctx.blocks)
        return *gradients, None


@gradoracle.kernel(window_attention)
def right(q, k, v):
    return _Window.apply(q, k, v, False)


@gradoracle.kernel(window_attention)
def wrong(q, k, v):
    """Its backward takes the slope of a group's first head for all of them."""
    return _Window.apply(q, k, v, True)
