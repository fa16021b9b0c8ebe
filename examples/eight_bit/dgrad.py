"""dgrad and wgrad of a linear layer with gradients in e5m2, each with a scale for each of its rows or columns.

gradoracle check examples/eight_bit/dgrad.py:right
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float8e4m3fn, Float8e5m2, Float32
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 70), "N": gradoracle.sizes(1, 40), "K": gradoracle.sizes(1, 70)},
    dtypes=("bfloat16",),
    outputs=("grad_x", "grad_w"),
)
def gradients(
    g: Float8e5m2[Tensor, "M N"], x: Float8e4m3fn[Tensor, "M K"], w: Float8e4m3fn[Tensor, "N K"],
    row: Float32[Tensor, "M"], sx: Float32[Tensor, "K"], sw: Float32[Tensor, "K"],
) -> tuple[Float[Tensor, "M K"], Float[Tensor, "N K"]]:  # fmt: skip
    """g w with a scale for each row of g and column of w, and g^T x with one for each column of x."""
    return (g.float() @ w.float()) * row[:, None] * sw, (g.float().T @ x.float()) * sx


@triton.jit
def _product(
    A, B, SA, SB, Y, M, N, K, am, ak, bn, bk, SCALED: tl.constexpr, BUG: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y [M N] = sa a [M K] b [N K]^T sb, with sa [M] and sb [N]."""
    m = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)  # strides may be large
    n = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = (start + tl.arange(0, BK)).to(tl.int64)
        a = tl.load(A + m[:, None] * am + k * ak, (m < M)[:, None] & (k < K), 0.0)
        b = tl.load(B + n * bn + k[:, None] * bk, (n < N) & (k < K)[:, None], 0.0)
        if BUG:
            a = a.to(tl.uint8, bitcast=True).to(tl.float8e4nv, bitcast=True)
        total = tl.dot(a, b, total)
    if SCALED:
        total *= tl.load(SA + m, m < M, 0.0)[:, None]
    y = total * tl.load(SB + n, n < N, 0.0)
    tl.store(Y + m[:, None] * N + n, y.to(Y.dtype.element_ty), (m < M)[:, None] & (n < N))


def _multiplied(a, b, sa, sb, bug=False):
    (m, k), n = a.shape, b.shape[0]
    y = torch.empty(m, n, dtype=torch.bfloat16, device=a.device)
    _product[triton.cdiv(m, 64), triton.cdiv(n, 32)](
        a, b, sb if sa is None else sa.contiguous(), sb.contiguous(), y, m, n, k, *a.stride(), *b.stride(),
        sa is not None, bug, 64, 32, 32,
    )  # fmt: skip
    return y


FORM = {"claims": ("forward",), "contracts": {"bfloat16": gradoracle.PRESETS["bf16-fp8"]}}


@gradoracle.kernel(gradients, **FORM)
def right(g, x, w, row, sx, sw):
    return _multiplied(g, w.T, row, sw), _multiplied(g.T, x.T, None, sx)


@gradoracle.kernel(gradients, **FORM)
def wrong(g, x, w, row, sx, sw):
    """wgrad reads g, which is e5m2, as e4m3."""
    return _multiplied(g, w.T, row, sw), _multiplied(g.T, x.T, None, sx, bug=True)
