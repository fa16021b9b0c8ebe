"""Attention of packed sequences (cu_seqlens), a tile for each sequence and head: a Triton kernel.

gradoracle check examples/modern/varlen_attention.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={
        "T": gradoracle.sizes(1, 40), "S": gradoracle.sizes(1, 5), "H": gradoracle.sizes(1, 3),
        "D": gradoracle.choices(16, 32),
    },
    domains={"cu_seqlens": gradoracle.Offsets("T")},
)  # fmt: skip
def varlen_attention(
    q: Float[Tensor, "T H D"], k: Float[Tensor, "T H D"], v: Float[Tensor, "T H D"], cu_seqlens: Int[Tensor, "S+1"]
) -> Float[Tensor, "T H D"]:
    """softmax(q k^T / sqrt(D)) v, causal, each token among those of its own sequence."""
    place = torch.arange(q.shape[0])
    own = (place[:, None] >= cu_seqlens[None, 1:-1]).sum(1)
    seen = (own[:, None] == own) & (place[:, None] >= place)
    s = torch.einsum("thd,shd->hts", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hts,shd->thd", torch.softmax(torch.where(seen, s, -torch.inf), -1), v)


@triton.jit
def _forward(Q, K, V, CU, O, M, L, H, scale, D: tl.constexpr, BLOCK: tl.constexpr):
    begin, end = tl.load(CU + tl.program_id(0)), tl.load(CU + tl.program_id(0) + 1)
    t, d = begin + tl.arange(0, BLOCK), tl.arange(0, D)
    at, inside = (t[:, None] * H + tl.program_id(1)) * D + d, (t < end)[:, None]
    q, k, v = tl.load(Q + at, inside, 0.0), tl.load(K + at, inside, 0.0), tl.load(V + at, inside, 0.0)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    s = tl.where((t[:, None] >= t) & (t < end), s, float("-inf"))
    m = tl.max(s, 1)
    p = tl.exp(s - m[:, None])
    l = tl.sum(p, 1)
    o = tl.dot(p.to(v.dtype), v, input_precision="ieee") / l[:, None]
    tl.store(O + at, o.to(O.dtype.element_ty), inside)
    tl.store(M + t * H + tl.program_id(1), m, t < end)
    tl.store(L + t * H + tl.program_id(1), l, t < end)


@triton.jit
def _backward(Q, K, V, CU, M, L, G, DQ, DK, DV, H, scale, BUG: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    begin, end = tl.load(CU + tl.program_id(0)), tl.load(CU + tl.program_id(0) + 1)
    t, d = begin + tl.arange(0, BLOCK), tl.arange(0, D)
    at, inside = (t[:, None] * H + tl.program_id(1)) * D + d, (t < end)[:, None]
    q, k, v = tl.load(Q + at, inside, 0.0), tl.load(K + at, inside, 0.0), tl.load(V + at, inside, 0.0)
    g = tl.load(G + at, inside, 0.0)
    m = tl.load(M + t * H + tl.program_id(1), t < end, 0.0)
    l = tl.load(L + t * H + tl.program_id(1), t < end, 1.0)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    seen = (t[:, None] > t if BUG else t[:, None] >= t) & inside
    p = tl.where(seen, tl.exp(tl.where(seen, s - m[:, None], 0.0)) / l[:, None], 0.0)
    dp = tl.dot(g, tl.trans(v), input_precision="ieee")
    ds = p * (dp - tl.sum(p * dp, 1)[:, None]) * scale
    dv = tl.dot(tl.trans(p).to(g.dtype), g, input_precision="ieee")
    tl.store(DQ + at, tl.dot(ds.to(k.dtype), k, input_precision="ieee").to(DQ.dtype.element_ty), inside)
    tl.store(DK + at, tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee").to(DK.dtype.element_ty), inside)
    tl.store(DV + at, dv.to(DV.dtype.element_ty), inside)


class _Varlen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, cu_seqlens, bug):
        inputs = [each.contiguous() for each in (q, k, v, cu_seqlens)]
        (t, h, d), sequences = q.shape, cu_seqlens.shape[0] - 1
        o, stats = torch.empty_like(inputs[0]), torch.empty(2, t, h, device=q.device)
        longest = max(16, triton.next_power_of_2(int(cu_seqlens.diff().max())))
        _forward[sequences, h](*inputs, o, *stats, h, d**-0.5, d, longest)
        ctx.save_for_backward(*inputs, *stats)
        ctx.plan = (sequences, h), (h, d**-0.5, bug, d, longest)
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        gradients = [torch.empty_like(each) for each in ctx.saved_tensors[:3]]
        grid, rest = ctx.plan
        _backward[grid](*ctx.saved_tensors, g.contiguous(), *gradients, *rest)
        return *gradients, None, None


@gradoracle.kernel(varlen_attention)
def right(q, k, v, cu_seqlens):
    return _Varlen.apply(q, k, v, cu_seqlens, False)


@gradoracle.kernel(varlen_attention)
def wrong(q, k, v, cu_seqlens):
    """Its backward masks the diagonal."""
    return _Varlen.apply(q, k, v, cu_seqlens, True)
