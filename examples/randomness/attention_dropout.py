"""Attention whose weights are dropped, by offsets in two dims: element (t, s) has the number of offset t S + s.

gradoracle check examples/randomness/attention_dropout.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"T": gradoracle.sizes(1, 20), "S": gradoracle.sizes(1, 20), "D": gradoracle.sizes(1, 16)},
    options={"p": (0.2, 0.1)},
    domains={"seed": gradoracle.IndexDomain(2**31)},
    random=gradoracle.Randomness(seed="seed", drop="p"),
)
def attention_dropout(
    q: Float[Tensor, "T D"],
    k: Float[Tensor, "S D"],
    v: Float[Tensor, "S D"],
    seed: Int[Tensor, ""],
    *,
    p: float = 0.2,
) -> Float[Tensor, "T D"]:
    """The weights softmax(q k^T / sqrt(D)), dropped with probability p and divided by 1 - p, times v."""
    weights = torch.softmax(q @ k.T * q.shape[1] ** -0.5, -1)
    rows, columns = torch.arange(q.shape[0])[:, None], torch.arange(k.shape[0])
    keep = gradoracle.random(seed, rows * k.shape[0] + columns) > p
    return torch.where(keep, weights / (1 - p), 0.0) @ v


@triton.jit
def _forward(Q, K, V, O, LSE, seed, p, scale, S, D, BS: tl.constexpr, BD: tl.constexpr):
    t = tl.program_id(0)
    s, d = tl.arange(0, BS), tl.arange(0, BD)
    there = (s < S)[:, None] & (d < D)[None, :]
    q = tl.load(Q + t * D + d, d < D, 0.0).to(tl.float32)
    k = tl.load(K + s[:, None] * D + d[None, :], there, 0.0).to(tl.float32)  # [BS BD]
    v = tl.load(V + s[:, None] * D + d[None, :], there, 0.0).to(tl.float32)
    z = tl.where(s < S, tl.sum(q[None, :] * k, 1) * scale, float("-inf"))
    m = tl.max(z, 0)
    lse = m + tl.log(tl.sum(tl.exp(z - m), 0))
    keep = tl.rand(seed, t * S + s) > p
    w = tl.where(keep, tl.exp(z - lse) / (1 - p), 0.0)
    tl.store(O + t * D + d, tl.sum(w[:, None] * v, 0).to(O.dtype.element_ty), d < D)
    tl.store(LSE + t, lse)


@triton.jit
def _backward_rows(Q, K, V, G, LSE, DELTA, DQ, seed, p, kept, scale, S, D, BS: tl.constexpr, BD: tl.constexpr):
    t = tl.program_id(0)
    s, d = tl.arange(0, BS), tl.arange(0, BD)
    there = (s < S)[:, None] & (d < D)[None, :]
    q = tl.load(Q + t * D + d, d < D, 0.0).to(tl.float32)
    g = tl.load(G + t * D + d, d < D, 0.0).to(tl.float32)
    k = tl.load(K + s[:, None] * D + d[None, :], there, 0.0).to(tl.float32)
    v = tl.load(V + s[:, None] * D + d[None, :], there, 0.0).to(tl.float32)
    w = tl.where(s < S, tl.exp(tl.sum(q[None, :] * k, 1) * scale - tl.load(LSE + t)), 0.0)
    keep = tl.rand(seed, t * S + s) > p
    dw = tl.where(keep, tl.sum(g[None, :] * v, 1) / kept, 0.0)
    delta = tl.sum(w * dw, 0)
    dz = w * (dw - delta) * scale
    tl.store(DELTA + t, delta)
    tl.store(DQ + t * D + d, tl.sum(dz[:, None] * k, 0).to(DQ.dtype.element_ty), d < D)


@triton.jit
def _backward_columns(
    Q, K, V, G, LSE, DELTA, DK, DV, seed, p, kept, scale, T, S, D, BT: tl.constexpr, BD: tl.constexpr
):
    s = tl.program_id(0)
    t, d = tl.arange(0, BT), tl.arange(0, BD)
    there = (t < T)[:, None] & (d < D)[None, :]
    q = tl.load(Q + t[:, None] * D + d[None, :], there, 0.0).to(tl.float32)  # [BT BD]
    g = tl.load(G + t[:, None] * D + d[None, :], there, 0.0).to(tl.float32)
    k = tl.load(K + s * D + d, d < D, 0.0).to(tl.float32)
    v = tl.load(V + s * D + d, d < D, 0.0).to(tl.float32)
    lse, delta = tl.load(LSE + t, t < T, 0.0), tl.load(DELTA + t, t < T, 0.0)
    w = tl.where(t < T, tl.exp(tl.sum(q * k[None, :], 1) * scale - lse), 0.0)
    keep = tl.rand(seed, t * S + s) > p
    dw = tl.where(keep, tl.sum(g * v[None, :], 1) / kept, 0.0)
    dz = w * (dw - delta) * scale
    tl.store(DK + s * D + d, tl.sum(dz[:, None] * q, 0).to(DK.dtype.element_ty), d < D)
    dropped = tl.where(keep, w / kept, 0.0)
    tl.store(DV + s * D + d, tl.sum(dropped[:, None] * g, 0).to(DV.dtype.element_ty), d < D)


class _AttentionDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, seed, p, kept):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        (T, D), S = q.shape, k.shape[0]
        o, lse = torch.empty_like(q), torch.empty(T, dtype=torch.float32, device=q.device)
        ctx.scale, ctx.blocks = D**-0.5, [triton.next_power_of_2(n) for n in (T, S, D)]
        _, BS, BD = ctx.blocks
        _forward[(T,)](q, k, v, o, lse, int(seed), p, ctx.scale, S, D, BS=BS, BD=BD)
        ctx.save_for_backward(q, k, v, lse)
        ctx.random = int(seed), p, kept
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        q, k, v, lse = ctx.saved_tensors
        (T, D), S, (BT, BS, BD) = q.shape, k.shape[0], ctx.blocks
        g, delta = g.contiguous(), torch.empty_like(lse)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        _backward_rows[(T,)](q, k, v, g, lse, delta, dq, *ctx.random, ctx.scale, S, D, BS=BS, BD=BD)
        _backward_columns[(S,)](q, k, v, g, lse, delta, dk, dv, *ctx.random, ctx.scale, T, S, D, BT=BT, BD=BD)
        return dq, dk, dv, None, None, None


@gradoracle.kernel(attention_dropout, deterministic=True)
def right(q, k, v, seed, *, p=0.2):
    """Attention in Triton that makes its mask again in backward."""
    return _AttentionDropout.apply(q, k, v, seed, p, 1 - p)


@gradoracle.kernel(attention_dropout, deterministic=True)
def wrong(q, k, v, seed, *, p=0.2):
    """Its backward divides by p instead of 1 - p."""
    return _AttentionDropout.apply(q, k, v, seed, p, p)
