"""Correct kernels that double a matrix, each with something that Triton kernels of released packages do; one is wrong.

Each stands for a group of operations that did not run on the CPU, or were judged wrongly.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from triton.language import exp
from triton.language.extra import libdevice

import gradoracle

BLOCK = 16


@gradoracle.family(dims={"N": gradoracle.sizes(1, 40)})
def doubled(x: Float[Tensor, "N 16"]) -> Float[Tensor, "N 16"]:
    """2 x."""
    return 2.0 * x


@triton.jit
def loops(X, Y, W, N, BLOCK: tl.constexpr):
    columns = tl.arange(0, 16)
    for row in range(0, N):
        place = row.to(tl.int64) * 16 + columns  # a loop variable has a dtype
        tl.store(Y + place, 2.0 * tl.load(X + place))


@triton.jit
def math_library(X, Y, W, N, BLOCK: tl.constexpr):
    place = tl.program_id(0) * 16 + tl.arange(0, 16)
    x = tl.load(X + place).to(tl.float32)
    tl.store(Y + place, (x * libdevice.rsqrt(tl.full([16], 0.25, tl.float32))).to(Y.dtype.element_ty))


@triton.jit
def bound_at_import(X, Y, W, N, BLOCK: tl.constexpr):
    place = tl.program_id(0) * 16 + tl.arange(0, 16)
    x = tl.load(X + place).to(tl.float32)
    tl.store(Y + place, (2.0 * x * exp(tl.zeros([16], tl.float32))).to(Y.dtype.element_ty))


@triton.jit
def three_products(X, Y, W, N, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    place = rows * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(X + place, mask=rows < N, other=0.0).to(tl.float32)
    twice = tl.where(tl.arange(0, 16)[:, None] == tl.arange(0, 16)[None, :], 2.0, 0.0)
    y = tl.dot(x, twice, input_precision="bf16x3")
    tl.store(Y + place, y.to(Y.dtype.element_ty), mask=rows < N)


@triton.jit
def discarded_load(X, Y, W, N, BLOCK: tl.constexpr):
    place = tl.program_id(0) * 16 + tl.arange(0, 16)
    x = tl.load(X + place)
    scratch = tl.load(W + tl.arange(0, 16))  # of memory that nothing wrote, and not used
    tl.store(Y + place, tl.where(N > 0, 2.0 * x, scratch.to(x.dtype)))


@triton.jit
def store_outside(X, Y, W, N, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    place = rows * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(X + place, mask=rows < N, other=0.0)
    tl.store(Y + place, 2.0 * x)  # the mask is forgotten


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, program, programs):
        ctx.program, ctx.programs = program, programs
        x = x.contiguous()
        y, scratch = torch.empty_like(x), torch.empty(16, dtype=torch.float32, device=x.device)
        program[(programs(x.shape[0]),)](x, y, scratch, x.shape[0], BLOCK=BLOCK)
        return y

    @staticmethod
    def backward(ctx, g):
        return _Doubled.apply(g, ctx.program, ctx.programs), None, None

    @staticmethod
    def jvp(ctx, tx, *others):
        return 2.0 * tx


def one(rows: int) -> int:
    """One program."""
    return 1


def a_row_each(rows: int) -> int:
    """As many programs as rows."""
    return rows


def tiles(rows: int) -> int:
    """As many programs as tiles of rows."""
    return triton.cdiv(rows, BLOCK)


@gradoracle.kernel(doubled)
def loop_variable_with_a_dtype(x):
    return _Doubled.apply(x, loops, one)


@gradoracle.kernel(doubled)
def libdevice_rsqrt(x):
    return _Doubled.apply(x, math_library, a_row_each)


@gradoracle.kernel(doubled)
def builtin_bound_at_import(x):
    return _Doubled.apply(x, bound_at_import, a_row_each)


@gradoracle.kernel(doubled)
def dot_in_bf16x3(x):
    return _Doubled.apply(x, three_products, tiles)


@gradoracle.kernel(doubled)
def load_that_is_discarded(x):
    return _Doubled.apply(x, discarded_load, a_row_each)


@gradoracle.kernel(doubled)
def store_past_the_end(x):
    return _Doubled.apply(x, store_outside, tiles)
