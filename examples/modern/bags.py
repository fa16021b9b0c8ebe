"""Sums of bags of embeddings: a Triton kernel whose backward adds to rows by atomics.

gradoracle check examples/modern/bags.py:right --dtype float32
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
        "V": gradoracle.sizes(1, 9), "D": gradoracle.sizes(1, 20), "N": gradoracle.sizes(1, 24),
        "B": gradoracle.sizes(1, 6),
    },
    domains={
        "rows": gradoracle.IndexDomain("V"), "offsets": gradoracle.Offsets("N"),
    },
)  # fmt: skip
def bags(table: Float[Tensor, "V D"], rows: Int[Tensor, "N"], offsets: Int[Tensor, "B+1"]) -> Float[Tensor, "B D"]:
    """out[b] is the sum of table[rows[n]] over offsets[b] <= n < offsets[b + 1]."""
    n = torch.arange(rows.shape[0])
    inside = (n >= offsets[:-1, None]) & (n < offsets[1:, None])  # [B N]
    return inside.to(table.dtype) @ table[rows]


@triton.jit
def _forward(TABLE, ROWS, OFFSETS, OUT, D, BLOCK: tl.constexpr):
    bag = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for n in range(tl.load(OFFSETS + bag), tl.load(OFFSETS + bag + 1)):
        total += tl.load(TABLE + tl.load(ROWS + n) * D + d, d < D, 0.0).to(tl.float32)
    tl.store(OUT + bag * D + d, total.to(OUT.dtype.element_ty), d < D)


@triton.jit
def _backward(G, ROWS, OFFSETS, DTABLE, D, BUG: tl.constexpr, BLOCK: tl.constexpr):
    bag = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    g = tl.load(G + bag * D + d, d < D, 0.0).to(tl.float32)
    for n in range(tl.load(OFFSETS + bag), tl.load(OFFSETS + bag + 1)):
        at = DTABLE + tl.load(ROWS + n) * D + d
        if BUG:
            tl.store(at, tl.load(at, d < D, 0.0) + g, d < D)
        else:
            tl.atomic_add(at, g, d < D)


class _Bags(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, rows, offsets, bug):
        table, rows, offsets = table.contiguous(), rows.contiguous(), offsets.contiguous()
        bags, d = offsets.shape[0] - 1, table.shape[1]
        out = torch.empty(bags, d, dtype=table.dtype, device=table.device)
        _forward[(bags,)](table, rows, offsets, out, d, triton.next_power_of_2(d))
        ctx.save_for_backward(rows, offsets)
        ctx.shape, ctx.bug = table.shape, bug
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        rows, offsets = ctx.saved_tensors
        d_table = torch.zeros(ctx.shape, dtype=torch.float32, device=g.device)
        d = ctx.shape[1]
        _backward[(g.shape[0],)](g.contiguous(), rows, offsets, d_table, d, ctx.bug, triton.next_power_of_2(d))
        return d_table.to(g.dtype), None, None, None


@gradoracle.kernel(bags)
def right(table, rows, offsets):
    return _Bags.apply(table, rows, offsets, False)


@gradoracle.kernel(bags)
def wrong(table, rows, offsets):
    """Its backward loads and stores where bags share a row: a race."""
    return _Bags.apply(table, rows, offsets, True)
