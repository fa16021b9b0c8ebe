"""Writing rows to slots of a cache, each slot once: a Triton kernel, and its backward a gather.

gradoracle check examples/modern/cache_write.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"T": gradoracle.sizes(1, 20), "D": gradoracle.sizes(1, 20)},
    domains={"slots": gradoracle.Permutation("T")},
)
def cache_write(x: Float[Tensor, "T D"], slots: Int[Tensor, "T"]) -> Float[Tensor, "T D"]:
    """out[slots[t]] = x[t]; the slots are distinct."""
    return torch.zeros_like(x).index_put((slots,), x)


@triton.jit
def _moved(X, SLOTS, OUT, D, BACK: tl.constexpr, BLOCK: tl.constexpr):
    row, d = tl.program_id(0), tl.arange(0, BLOCK)
    slot = tl.load(SLOTS + row)
    x = tl.load(X + (slot if BACK else row) * D + d, d < D, 0.0)
    tl.store(OUT + (row if BACK else slot) * D + d, x, d < D)


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, slots, bug):
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        _moved[(x.shape[0],)](x.contiguous(), slots, out, x.shape[1], False, triton.next_power_of_2(x.shape[1]))
        ctx.save_for_backward(slots)
        ctx.bug = bug
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (slots,) = ctx.saved_tensors
        dx = torch.empty_like(g, memory_format=torch.contiguous_format)
        _moved[(g.shape[0],)](g.contiguous(), slots, dx, g.shape[1], not ctx.bug, triton.next_power_of_2(g.shape[1]))
        return dx, None, None


@gradoracle.kernel(cache_write)
def right(x, slots):
    return _Write.apply(x, slots.contiguous(), False)


@gradoracle.kernel(cache_write)
def wrong(x, slots):
    """Its backward scatters, too: wrong wherever the permutation is not its own inverse."""
    return _Write.apply(x, slots.contiguous(), True)
