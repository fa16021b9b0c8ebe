"""A router: softmax, the two largest, normalised again, and the experts' numbers. A Triton kernel.

gradoracle check examples/modern/router.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle


@gradoracle.family(dims={"T": gradoracle.sizes(1, 20), "E": gradoracle.sizes(2, 12)}, outputs=("weights", "experts"))
def router(logits: Float[Tensor, "T E"]) -> tuple[Float[Tensor, "T 2"], Int[Tensor, "T 2"]]:
    """The two largest of softmax(logits), divided by their sum, and where they are."""
    top, experts = torch.topk(torch.softmax(logits, -1), 2, -1)
    return top / top.sum(-1, keepdim=True), experts


@triton.jit
def _forward(LOGITS, P, I, E, BLOCK: tl.constexpr):
    row, e = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(LOGITS + row * E + e, e < E, float("-inf")).to(tl.float32)
    a = tl.max(x)
    i = tl.min(tl.where(x == a, e, BLOCK))
    rest = tl.where(e == i, float("-inf"), x)
    b = tl.max(rest)
    j = tl.min(tl.where((rest == b) & (e != i), e, BLOCK))
    p = 1 / (1 + tl.exp(b - a))
    tl.store(P + row * 2, p.to(P.dtype.element_ty))
    tl.store(P + row * 2 + 1, (tl.exp(b - a) * p).to(P.dtype.element_ty))
    tl.store(I + row * 2, i.to(tl.int64))
    tl.store(I + row * 2 + 1, j.to(tl.int64))


class _Router(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, bug):
        logits = logits.contiguous()
        rows, e = logits.shape
        p = torch.empty(rows, 2, dtype=logits.dtype, device=logits.device)
        experts = torch.empty(rows, 2, dtype=torch.int64, device=logits.device)
        _forward[(rows,)](logits, p, experts, e, triton.next_power_of_2(e))
        ctx.save_for_backward(logits, experts)
        ctx.mark_non_differentiable(experts)
        ctx.bug = bug
        return p, experts

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g, _):
        logits, experts = ctx.saved_tensors
        p = torch.softmax(logits.float().gather(1, experts), -1)
        g = g.float()
        ds = p * (g if ctx.bug else g - (g * p).sum(-1, keepdim=True))
        return torch.zeros_like(logits).scatter_(1, experts, ds.to(logits.dtype)), None


@gradoracle.kernel(router)
def right(logits):
    return _Router.apply(logits, False)


@gradoracle.kernel(router)
def wrong(logits):
    """Its backward forgets that the two are divided by their sum."""
    return _Router.apply(logits, True)
