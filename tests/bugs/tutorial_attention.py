"""A fault of attention as Triton's tutorial had it, and a correct one, in PyTorch.

gradoracle check tests/bugs/tutorial_attention.py:causal_start_always --family sdpa
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradoracle.mutation.bugs import Bugs

ROWS = 16


class Blocks:
    """Right: float32; dk and dv of a block of keys are sums over the queries from the first that sees it."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False) -> Tensor:
        """o [B H T Dv] in the dtype of q; a query that sees no key has o = 0."""
        return _Blocks.apply(self, q, k, v, q.shape[-1] ** -0.5 if scale is None else scale, causal)

    def first_row(self, first_key: int, ahead: int, causal: bool) -> int:
        """From which query on the sums run; causal, query i sees keys up to i + ahead."""
        return max(0, first_key - ahead) if causal else 0


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, q, k, v, scale, causal):
        p = _probabilities(q, k, scale, causal)
        ctx.save_for_backward(q, k, v)
        ctx.own, ctx.scale, ctx.causal = own, scale, causal
        return (p @ v.float()).to(q.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        q, k, v = ctx.saved_tensors
        p, ahead = _probabilities(q, k, ctx.scale, ctx.causal), k.shape[2] - q.shape[2]
        dp = g.float() @ v.float().mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * ctx.scale
        dq = (ds @ k.float()).to(q.dtype)
        dk, dv = [], []
        for first in range(0, k.shape[2], ROWS):
            keys, rows = slice(first, first + ROWS), slice(ctx.own.first_row(first, ahead, ctx.causal), None)
            dv.append(p[:, :, rows, keys].mT @ g[:, :, rows].float())
            dk.append(ds[:, :, rows, keys].mT @ q[:, :, rows].float())
        return None, dq, torch.cat(dk, 2).to(k.dtype), torch.cat(dv, 2).to(v.dtype), None, None


def _probabilities(q: Tensor, k: Tensor, scale: float, causal: bool) -> Tensor:
    """[B H T M] float32; rows of zeros where a query sees no key."""
    s = q.float() @ k.float().mT * scale
    rows, keys = s.shape[2:]
    seen = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows) if causal else torch.ones(rows, keys) > 0
    s = s.masked_fill(~seen, -torch.inf)
    some = seen.any(-1)[:, None]
    return torch.where(some, torch.softmax(s.masked_fill(~some, 0.0), -1), 0.0)


class CausalStartAlways(Blocks):
    """Triton's tutorial: the loop over queries in backward began at the block of keys, causal or not.

    Its tests were causal.
    """

    def first_row(self, first_key: int, ahead: int, causal: bool) -> int:
        return max(0, first_key - ahead)


right = Blocks()
causal_start_always = CausalStartAlways()

BUGS = Bugs(right, "sdpa")
BUGS.add(
    causal_start_always,
    "triton-lang/triton#5660",
    "ones_transposed_dv_equals_ones_transposed_g",
    "tail",
    name="causal_start_always",
    T="2:64",
    M="17:64",
)
