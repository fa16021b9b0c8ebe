"""A quantised linear layer with scales, in 8-bit floats: a right Triton kernel, and the same with mistakes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor

import gradoracle
from gradoracle.model.formats import DTYPES

EIGHT_BITS = tuple(name for name, dtype in DTYPES.items() if dtype.itemsize == 1)
DIMS = {"M": gradoracle.sizes(1, 80), "N": gradoracle.sizes(1, 40), "K": gradoracle.sizes(1, 130)}


@gradoracle.family(dims=DIMS, dtypes=EIGHT_BITS, outputs=("y", "quantised"))
def linear(
    x: Float[Tensor, "M K"], w: Float[Tensor, "N K"], row: Float32[Tensor, "M"], column: Float32[Tensor, "N"]
) -> tuple[Float32[Tensor, "M N"], Float[Tensor, "M N"]]:
    """x w^T with a scale for each row of x and of w, and the same in 8 bits."""
    y = x @ w.T * row[:, None] * column
    return y, y


@triton.jit
def _linear(
    X, W, Row, Column, Y, Quantised, M, N, K, xm, xk, wn, wk, row_stride, column_stride,
    FORGETS: tl.constexpr, THROUGH: tl.constexpr, HALF: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float16 if HALF else tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(X + m[:, None] * xm + k[None] * xk, (m[:, None] < M) & (k[None] < K), 0.0)
        w = tl.load(W + n[None] * wn + k[:, None] * wk, (n[None] < N) & (k[:, None] < K), 0.0)
        if THROUGH is not None:
            x = x.to(tl.float32).to(THROUGH).to(tl.float32).to(x.dtype)
        if HALF:
            total += tl.dot(x, w, out_dtype=tl.float16)
        else:
            total = tl.dot(x, w, total)
    row = tl.load(Row + m * row_stride, m < M, 0.0)
    if FORGETS:
        row = tl.where(m == M - 1, 1.0, row)
    column = tl.load(Column + n * column_stride, n < N, 0.0)
    y = total.to(tl.float32) * row[:, None] * column[None]
    at, inside = m[:, None] * N + n[None], (m[:, None] < M) & (n[None] < N)
    tl.store(Y + at, y, inside)
    tl.store(Quantised + at, y.to(Quantised.dtype.element_ty), inside)


def _launched(x, w, row, column, *, forgets=False, through=None, half=False, tile=16):
    (m, k), n = x.shape, w.shape[0]
    y = torch.empty((m, n), dtype=torch.float32, device=x.device)
    quantised = torch.empty((m, n), dtype=x.dtype, device=x.device)
    _linear[triton.cdiv(m, tile), triton.cdiv(n, 16)](
        x, w, row, column, y, quantised, m, n, k, *x.stride(), *w.stride(), *row.stride(), *column.stride(),
        FORGETS=forgets, THROUGH=through, HALF=half, BLOCK_M=tile, BLOCK_N=16, BLOCK_K=32,
    )  # fmt: skip
    return y, quantised


forward_only = gradoracle.kernel(linear, claims=("forward",), dtypes=EIGHT_BITS)


@forward_only
def right(x, w, row, column):
    """By mma.sync on sm_90, as tiles have 16 rows."""
    return _launched(x, w, row, column)


@forward_only
def right_in_large_tiles(x, w, row, column):
    """By wgmma on sm_90, as tiles have 64 rows."""
    return _launched(x, w, row, column, tile=64)


@forward_only
def forgets_the_scale_of_a_row(x, w, row, column):
    return _launched(x, w, row, column, forgets=True)


@forward_only
def casts_through_the_other_format(x, w, row, column):
    other = tl.float8e5 if x.dtype is torch.float8_e4m3fn else tl.float8e4nv
    return _launched(x, w, row, column, through=other)


@forward_only
def accumulates_in_float16(x, w, row, column):
    return _launched(x, w, row, column, half=True)


@forward_only
def in_pytorch(x, w, row, column):
    """A right kernel in plain PyTorch, whose casts to float8_e5m2 give infinities."""
    y = (x.float() @ w.float().T) * row[:, None] * column
    return y, y.to(x.dtype)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, row, column):
        ctx.save_for_backward(x, w, row, column)
        return in_pytorch.call(x, w, row, column)

    @staticmethod
    def backward(ctx, dy, dquantised):
        x, w, row, column = (each.float() for each in ctx.saved_tensors)
        total = dy.float() + dquantised.float()
        scaled = total * row[:, None] * column
        plain = x @ w.T
        dx, dw = (scaled @ w).to(ctx.saved_tensors[0].dtype), (scaled.T @ x).to(ctx.saved_tensors[1].dtype)
        return dx, dw, (total * plain * column).sum(1), (total * plain * row[:, None]).sum(0)


@gradoracle.kernel(linear, claims=("forward", "vjp"), dtypes=EIGHT_BITS)
def with_gradients(x, w, row, column):
    """A right forward and backward, with gradients in 8 bits."""
    return _Differentiable.apply(x, w, row, column)
