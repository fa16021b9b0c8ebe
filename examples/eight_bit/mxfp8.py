"""A product of mxfp8: 8-bit floats with a power of two, in e8m0, for each 32 of them; by tl.dot_scaled.

gradoracle check examples/eight_bit/mxfp8.py:right
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float8e4m3fn, Float32, UInt8
from torch import Tensor

import gradoracle

EXPONENTS = gradoracle.IndexDomain(137, minimum=117)  # codes of 2^-10 to 2^9


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 40), "N": gradoracle.sizes(1, 40), "P": gradoracle.sizes(1, 6)},
    domains={"sx": EXPONENTS, "sw": EXPONENTS},
    dtypes=("float32",),
)
def mxfp8(
    x: Float8e4m3fn[Tensor, "M 32*P"],
    w: Float8e4m3fn[Tensor, "N 32*P"],
    sx: UInt8[Tensor, "M P"],
    sw: UInt8[Tensor, "N P"],
) -> Float32[Tensor, "M N"]:
    """x w^T, each block of 32 along K times two to its exponent."""
    blocks = torch.einsum("mpk,npk->pmn", x.unflatten(1, (-1, 32)), w.unflatten(1, (-1, 32)))
    return (blocks * torch.exp2(sx.float() - 127).T[:, :, None] * torch.exp2(sw.float() - 127).T[:, None]).sum(0)


@triton.jit
def _product(X, W, SX, SW, Y, M, N, K, BUG: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k, p = start + tl.arange(0, BK), start // 32 + tl.arange(0, BK // 32)
        x = tl.load(X + m[:, None] * K + k, (m < M)[:, None] & (k < K), 0.0)
        w = tl.load(W + n * K + k[:, None], (n < N) & (k < K)[:, None], 0.0)
        sx = tl.load(SX + m[:, None] * (K // 32) + p, (m < M)[:, None] & (p < K // 32), 127)
        at = n[:, None] * (K // 32) + (start // 32 if BUG else p)
        sw = tl.load(SW + at, (n < N)[:, None] & (p < K // 32), 127)
        total = tl.dot_scaled(x, sx, "e4m3", w, sw, "e4m3", acc=total)
    tl.store(Y + m[:, None] * N + n, total, (m < M)[:, None] & (n < N))


def _multiplied(x, w, sx, sw, bug):
    x, w, sx, sw = (each.contiguous() for each in (x, w, sx, sw))
    (m, k), n = x.shape, w.shape[0]
    y = torch.empty(m, n, dtype=torch.float32, device=x.device)
    _product[triton.cdiv(m, 16), triton.cdiv(n, 16)](x, w, sx, sw, y, m, n, k, bug, 16, 16, 64)
    return y


@gradoracle.kernel(mxfp8, claims=("forward",))
def right(x, w, sx, sw):
    return _multiplied(x, w, sx, sw, False)


@gradoracle.kernel(mxfp8, claims=("forward",))
def wrong(x, w, sx, sw):
    """Both blocks of a tile get the scale of w of the first one."""
    return _multiplied(x, w, sx, sw, True)
