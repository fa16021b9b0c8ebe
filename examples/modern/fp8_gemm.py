"""A product of 8-bit floats with a scale for each row and column: a Triton kernel that has a forward only.

gradoracle check examples/modern/fp8_gemm.py:right --dtype float8_e4m3fn
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 40), "N": gradoracle.sizes(1, 40), "K": gradoracle.sizes(1, 80)},
    dtypes=("float8_e4m3fn", "float8_e5m2"),
)
def fp8_gemm(
    x: Float[Tensor, "M K"], w: Float[Tensor, "N K"], row: Float32[Tensor, "M"], column: Float32[Tensor, "N"]
) -> Float32[Tensor, "M N"]:
    """x w^T, with a scale for each row of x and of w."""
    return x @ w.T * row[:, None] * column


@triton.jit
def _product(
    X, W, ROW, COLUMN, Y, M, N, K, BUG: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K - K % BK if BUG and K > BK else K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(X + m[:, None] * K + k, (m < M)[:, None] & (k < K), 0.0)
        w = tl.load(W + n * K + k[:, None], (n < N) & (k < K)[:, None], 0.0)
        total = tl.dot(x, w, total)
    y = total * tl.load(ROW + m, m < M, 0.0)[:, None] * tl.load(COLUMN + n, n < N, 0.0)
    tl.store(Y + m[:, None] * N + n, y, (m < M)[:, None] & (n < N))


def _multiplied(x, w, row, column, bug):
    x, w, row, column = (each.contiguous() for each in (x, w, row, column))
    (m, k), n = x.shape, w.shape[0]
    y = torch.empty(m, n, dtype=torch.float32, device=x.device)
    _product[triton.cdiv(m, 16), triton.cdiv(n, 16)](x, w, row, column, y, m, n, k, bug, 16, 16, 32)
    return y


@gradoracle.kernel(fp8_gemm)
def right(x, w, row, column):
    return _multiplied(x, w, row, column, False)


@gradoracle.kernel(fp8_gemm)
def wrong(x, w, row, column):
    """The last, partial block of K is left out."""
    return _multiplied(x, w, row, column, True)
