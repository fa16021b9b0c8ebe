"""A product of 8-bit floats with a scale for each row of x and of w, as inference has them.

gradoracle check examples/eight_bit/row_scales.py:right
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float8e4m3fn, Float32
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 70), "N": gradoracle.sizes(1, 40), "K": gradoracle.sizes(1, 130)},
    dtypes=("float32",),
)
def row_scales(
    x: Float8e4m3fn[Tensor, "M K"],
    w: Float8e4m3fn[Tensor, "N K"],
    row: Float32[Tensor, "M"],
    column: Float32[Tensor, "N"],
) -> Float32[Tensor, "M N"]:
    """x w^T of the dequantised operands."""
    return x @ w.T * row[:, None] * column


@triton.jit
def _product(X, W, ROW, COLUMN, Y, M, N, K, BUG: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(X + m[:, None] * K + k, (m < M)[:, None] & (k < K), 0.0)
        w = tl.load(W + n * K + k[:, None], (n < N) & (k < K)[:, None], 0.0)
        total = tl.dot(x, w, total)
    row = tl.load(ROW + (m // BM * BM if BUG else m), m < M, 0.0)
    y = total * row[:, None] * tl.load(COLUMN + n, n < N, 0.0)
    tl.store(Y + m[:, None] * N + n, y, (m < M)[:, None] & (n < N))


def _multiplied(x, w, row, column, bug):
    x, w, row, column = (each.contiguous() for each in (x, w, row, column))
    (m, k), n = x.shape, w.shape[0]
    y = torch.empty(m, n, dtype=torch.float32, device=x.device)
    _product[triton.cdiv(m, 64), triton.cdiv(n, 16)](x, w, row, column, y, m, n, k, bug, 64, 16, 32)
    return y


FORM = {"claims": ("forward",), "contracts": {"float32": gradoracle.PRESETS["ieee32-fp8"]}}


@gradoracle.kernel(row_scales, **FORM)
def right(x, w, row, column):
    return _multiplied(x, w, row, column, False)


@gradoracle.kernel(row_scales, **FORM)
def wrong(x, w, row, column):
    """Every row of a tile takes the scale of the first one."""
    return _multiplied(x, w, row, column, True)
