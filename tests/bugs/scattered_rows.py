"""Sums of rows by an index that may be -1, for nowhere, with atomics: the correct kernel, and a released bug."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle
from gradoracle.mutation.bugs import Bugs


@gradoracle.family(
    dims={"N": gradoracle.sizes(1, 40), "M": gradoracle.sizes(1, 20), "D": gradoracle.sizes(1, 40)},
    domains={"index": gradoracle.IndexDomain("M", minimum=-1)},
)
def scattered(x: Float[Tensor, "N D"], index: Int[Tensor, "N"], y: Float[Tensor, "M D"]) -> Float[Tensor, "M D"]:
    """y, with each row of x added to the row that its index names; -1 names none."""
    return y + (torch.arange(y.shape[0])[:, None] == index[None, :]).to(x.dtype) @ x


@triton.jit
def _add(X, Index, Sums, D, x_row, x_col, i_row, FOUND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    to = tl.load(Index + row * i_row)
    there = (d < D) & (to >= 0)
    x = tl.load(X + row * x_row + d * x_col, mask=there, other=0.0).to(tl.float32)
    tl.atomic_add(Sums + to * D + d, x, mask=there if FOUND else d < D)


class _Scattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, y: Tensor, found: bool) -> Tensor:
        ctx.save_for_backward(index)
        sums = torch.zeros(y.shape, dtype=torch.float32)
        _add[(x.shape[0],)](
            x, index, sums, x.shape[1], *x.stride(), *index.stride(), FOUND=found,
            BLOCK=triton.next_power_of_2(x.shape[1]),
        )  # fmt: skip
        return (y.float() + sums).to(y.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        (index,) = ctx.saved_tensors
        return torch.where(index[:, None] >= 0, g[index.clamp(min=0)], 0.0), None, g.clone(), None


@gradoracle.kernel(scattered)
def right(x, index, y):
    """The correct kernel: nothing is added for -1."""
    return _Scattered.apply(x, index, y, True)


BUGS = Bugs(right)


@BUGS.of("Dao-AILab/flash-attention#2755", "every_access_stays_inside_its_tensor", "access")
@gradoracle.kernel(scattered)
def zero_added_before_the_first_row(x, index, y):
    """Dao-AILab/flash-attention#2755: for the sentinel -1 of a sparse index, 0.0 was added, at index -1.

    What lies before the tensor keeps its value but for a subnormal, which the addition flushes; integers held there
    are changed.
    """
    return _Scattered.apply(x, index, y, False)
