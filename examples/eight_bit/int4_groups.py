"""Weights of 4 bits, two in a byte, with a scale and a zero point for each group of 16 along K: forward and dgrad.

gradoracle check examples/eight_bit/int4_groups.py:right
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 40), "N": gradoracle.sizes(1, 40), "P": gradoracle.sizes(1, 5)},
    domains={"packed": gradoracle.Bits(8), "zero": gradoracle.IndexDomain(16)},
    dtypes=("float32", "bfloat16"),
)
def int4_linear(
    x: Float[Tensor, "M 16*P"],
    packed: UInt8[Tensor, "N 8*P"],
    scale: Float32[Tensor, "N P"],
    zero: UInt8[Tensor, "N P"],
) -> Float[Tensor, "M N"]:
    """x w^T with w = (nibble - zero) scale; the low nibble of a byte is the first of two along K."""
    nibbles = torch.stack([packed & 15, packed >> 4], -1).unflatten(1, (-1, 8)).flatten(2)  # [N P 16]
    w = (nibbles.to(x.dtype) - zero[:, :, None]) * scale[:, :, None]
    return x @ w.flatten(1).T


@triton.jit
def _weights(W, S, Z, n, k, N, K, BUG: tl.constexpr):
    """The tile w [k n] in float32."""
    inside = (k < K)[:, None] & (n < N)
    byte = tl.load(W + n * (K // 2) + (k // 2)[:, None], inside, 0)
    high = (k % 2 == 0) if BUG else (k % 2 == 1)
    nibble = tl.where(high[:, None], byte >> 4, byte & 15).to(tl.float32)
    group = n * (K // 16) + (k // 16)[:, None]
    zero = tl.load(Z + group, inside, 0).to(tl.float32)
    return (nibble - zero) * tl.load(S + group, inside, 0.0)


@triton.jit
def _forward(X, W, S, Z, Y, M, N, K, BUG: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(X + m[:, None] * K + k, (m < M)[:, None] & (k < K), 0.0)
        w = _weights(W, S, Z, n, k, N, K, BUG).to(x.dtype)
        total = tl.dot(x, w, total, input_precision="ieee")
    tl.store(Y + m[:, None] * N + n, total.to(Y.dtype.element_ty), (m < M)[:, None] & (n < N))


@triton.jit
def _dgrad(G, W, S, Z, DX, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BK + tl.arange(0, BK)
    total = tl.zeros((BM, BK), tl.float32)
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        g = tl.load(G + m[:, None] * N + n, (m < M)[:, None] & (n < N), 0.0)
        w = _weights(W, S, Z, n, k, N, K, False).to(g.dtype)
        total = tl.dot(g, tl.trans(w), total, input_precision="ieee")
    tl.store(DX + m[:, None] * K + k, total.to(DX.dtype.element_ty), (m < M)[:, None] & (k < K))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, packed, scale, zero, bug):
        x, packed, scale, zero = (each.contiguous() for each in (x, packed, scale, zero))
        ctx.save_for_backward(packed, scale, zero)
        (m, k), n = x.shape, packed.shape[0]
        y = torch.empty(m, n, dtype=x.dtype, device=x.device)
        _forward[triton.cdiv(m, 16), triton.cdiv(n, 16)](x, packed, scale, zero, y, m, n, k, bug, 16, 16, 32)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        packed, scale, zero = ctx.saved_tensors
        (m, n), k = g.shape, 2 * packed.shape[1]
        dx = torch.empty(m, k, dtype=g.dtype, device=g.device)
        _dgrad[triton.cdiv(m, 16), triton.cdiv(k, 32)](g.contiguous(), packed, scale, zero, dx, m, n, k, 16, 16, 32)
        return dx, None, None, None, None


@gradoracle.kernel(int4_linear, no_gradient=("scale",), claims=("forward", "vjp"))
def right(x, packed, scale, zero):
    return _Linear.apply(x, packed, scale, zero, False)


@gradoracle.kernel(int4_linear, no_gradient=("scale",), claims=("forward", "vjp"))
def wrong(x, packed, scale, zero):
    """Its forward takes the high nibble first."""
    return _Linear.apply(x, packed, scale, zero, True)
