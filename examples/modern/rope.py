"""Rotary embedding in place: a Triton kernel that writes to its argument, in both directions.

gradoracle check examples/modern/rope.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle

SIZES = {
    "B": gradoracle.sizes(1, 3),
    "T": gradoracle.sizes(1, 9),
    "H": gradoracle.sizes(1, 3),
    "D": gradoracle.sizes(1, 9),
}


@gradoracle.family(dims=SIZES)
def rope(x: Float[Tensor, "B T H 2*D"], angle: Float[Tensor, "T D"]) -> Float[Tensor, "B T H 2*D"]:
    """Each pair (x[d], x[D + d]) rotated by angle[t, d]."""
    c, s = torch.cos(angle)[:, None], torch.sin(angle)[:, None]  # [T 1 D]
    a, b = x.chunk(2, -1)
    return torch.cat([a * c - b * s, b * c + a * s], -1)


@triton.jit
def _rotate(X, C, S, T, H, D, BACK: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    t = row // H % T
    c, s = tl.load(C + t * D + d, d < D, 0.0), tl.load(S + t * D + d, d < D, 0.0)
    s = -s if BACK else s
    first, second = X + row * 2 * D + d, X + row * 2 * D + D + d
    a, b = tl.load(first, d < D, 0.0).to(tl.float32), tl.load(second, d < D, 0.0).to(tl.float32)
    tl.store(first, (a * c - b * s).to(X.dtype.element_ty), d < D)
    tl.store(second, (b * c + a * s).to(X.dtype.element_ty), d < D)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, angle, bug):
        assert x.is_contiguous(), "x has gaps, expected a contiguous tensor"
        c, s = torch.cos(angle.float()).contiguous(), torch.sin(angle.float()).contiguous()
        ctx.mark_dirty(x)
        ctx.save_for_backward(c, s)
        ctx.bug = bug
        _rotate[(x[..., 0].numel(),)](x, c, s, *x.shape[1:3], c.shape[1], False, triton.next_power_of_2(c.shape[1]))
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        c, s = ctx.saved_tensors
        dx = g.clone(memory_format=torch.contiguous_format)
        blocks = triton.next_power_of_2(c.shape[1])
        _rotate[(g[..., 0].numel(),)](dx, c, s, *g.shape[1:3], c.shape[1], not ctx.bug, blocks)
        return dx, None, None


@gradoracle.kernel(rope, mutates=("x",), no_gradient=("angle",))
def right(x, angle):
    return _Rope.apply(x, angle, False)


@gradoracle.kernel(rope, mutates=("x",), no_gradient=("angle",))
def wrong(x, angle):
    """Its backward rotates in the direction of the forward."""
    return _Rope.apply(x, angle, True)
