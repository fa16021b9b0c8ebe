"""Sums from each place to the end, and a fault that a released kernel of them had.

gradoracle check tests/bugs/reverse_cumsum.py:total_less_cumsum
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.mutation.bugs import Bugs


@gradoracle.family(outputs=("y",), dims={"B": gradoracle.sizes(1, 3), "T": gradoracle.sizes(1, 256)})
def reverse_cumsum(x: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """y_t is the sum of x_s over s >= t."""
    return x.flip(-1).cumsum(-1).flip(-1)


@triton.jit
def sums_kernel(x, y, T, x_b, x_t, REVERSE: tl.constexpr, SUBTRACT: tl.constexpr, BLOCK: tl.constexpr):
    """Write y [B T]: sums from the start, or with REVERSE to the end. A program has a row."""
    row = tl.program_id(0).to(tl.int64)
    t = tl.arange(0, BLOCK)
    value = tl.load(x + row * x_b + t * x_t, mask=t < T, other=0.0).to(tl.float32)
    if REVERSE and SUBTRACT:
        total = -tl.cumsum(value, 0) + tl.sum(value, 0) + value
    else:
        total = tl.cumsum(value, 0, reverse=REVERSE)
    tl.store(y + row * T + t, total.to(y.dtype.element_ty), mask=t < T)


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, subtract):
        ctx.subtract = subtract
        return _sums(x, True, subtract)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return _sums(g, False, ctx.subtract), None


def _sums(x: Tensor, reverse: bool, subtract: bool) -> Tensor:
    if x.dim() != 2 or x.dtype not in (torch.float32, torch.bfloat16, torch.float16) or x.device.type == "meta":
        raise ValueError(
            f"x is {x.dtype} {tuple(x.shape)} on {x.device}; expected float32 or 16 bit [B T], and not meta"
        )
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = max(2, triton.next_power_of_2(x.shape[1]))
    sums_kernel[(x.shape[0],)](x, y, x.shape[1], *x.stride(), REVERSE=reverse, SUBTRACT=subtract, BLOCK=block)
    return y


@gradoracle.kernel(reverse_cumsum)
def right(x):
    """Sums taken from the end."""
    return _Sums.apply(x, False)


BUGS = Bugs(right)


@BUGS.of("fla-org/flash-linear-attention#1095", "forward_matches_the_oracle")
@gradoracle.kernel(reverse_cumsum)
def total_less_cumsum(x):
    """fla-org/flash-linear-attention: sums to the end were the total, less the sums from the start, plus the element.

    A small sum behind large elements is then what is left of two large numbers.
    """
    return _Sums.apply(x, True)
