"""A product with weights of 4 bits, eight in an int32, with a scale for each group of 8 rows: a Triton kernel.

gradoracle check examples/modern/int4_matmul.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 20), "N": gradoracle.sizes(1, 20), "P": gradoracle.sizes(1, 6)},
    domains={"packed": gradoracle.Bits(32)},
)
def int4_matmul(
    x: Float[Tensor, "M 8*P"], packed: Int32[Tensor, "P N"], scale: Float[Tensor, "P N"]
) -> Float[Tensor, "M N"]:
    """x w with w[8 p + i, n] = (bits 4 i to 4 i + 3 of packed[p, n] - 8) scale[p, n]."""
    nibbles = (packed[:, None] >> (4 * torch.arange(8)[:, None])) & 15  # [P 8 N]
    return x @ ((nibbles - 8) * scale[:, None]).flatten(0, 1)


@triton.jit
def _weights(W, S, k, n, K, N, BUG: tl.constexpr):
    inside = (k < K)[:, None] & (n < N)
    at = (k // 8)[:, None] * N + n
    bits = (tl.load(W + at, inside, 0) >> ((k % 8) * 4)[:, None]) & (7 if BUG else 15)
    return (bits - 8).to(tl.float32), tl.load(S + at, inside, 0.0).to(tl.float32)


@triton.jit
def _product(X, W, S, Y, M, N, K, BUG: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(X + m[:, None] * K + k, (m < M)[:, None] & (k < K), 0.0).to(tl.float32)
        w, s = _weights(W, S, k, n, K, N, BUG)
        total = tl.dot(x, w * s, total, input_precision="ieee")
    tl.store(Y + m[:, None] * N + n, total.to(Y.dtype.element_ty), (m < M)[:, None] & (n < N))


@triton.jit
def _transposed(G, W, S, DX, M, N, K, BUG: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BK + tl.arange(0, BK)
    total = tl.zeros((BM, BK), tl.float32)
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        g = tl.load(G + m[:, None] * N + n, (m < M)[:, None] & (n < N), 0.0).to(tl.float32)
        w, s = _weights(W, S, k, n, K, N, BUG)
        total = tl.dot(g, tl.trans(w * s), total, input_precision="ieee")
    tl.store(DX + m[:, None] * K + k, total.to(DX.dtype.element_ty), (m < M)[:, None] & (k < K))


class _Int4(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, packed, scale, bug):
        x, packed, scale = x.contiguous(), packed.contiguous(), scale.contiguous()
        (m, k), n = x.shape, packed.shape[1]
        y = torch.empty(m, n, dtype=x.dtype, device=x.device)
        _product[triton.cdiv(m, 16), triton.cdiv(n, 16)](x, packed, scale, y, m, n, k, False, 16, 16, 16)
        ctx.save_for_backward(packed, scale)
        ctx.k, ctx.bug = k, bug
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        packed, scale = ctx.saved_tensors
        m, n = g.shape
        dx = torch.empty(m, ctx.k, dtype=g.dtype, device=g.device)
        _transposed[triton.cdiv(m, 16), triton.cdiv(ctx.k, 16)](
            g.contiguous(), packed, scale, dx, m, n, ctx.k, ctx.bug, 16, 16, 16
        )
        return dx, None, None, None


@gradoracle.kernel(int4_matmul, no_gradient=("scale",))
def right(x, packed, scale):
    return _Int4.apply(x, packed, scale, False)


@gradoracle.kernel(int4_matmul, no_gradient=("scale",))
def wrong(x, packed, scale):
    """Its backward reads three of the four bits."""
    return _Int4.apply(x, packed, scale, True)
