"""A product of 8-bit floats with a scale for each 128 of a row of x and each 128 x 128 of w, as DeepSeek-V3 has them.

gradoracle check examples/eight_bit/block_scales.py:right
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float8e4m3fn, Float32
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 40), "Q": gradoracle.sizes(1, 2), "P": gradoracle.sizes(1, 3)},
    dtypes=("float32",),
)
def block_scales(
    x: Float8e4m3fn[Tensor, "M 128*P"], w: Float8e4m3fn[Tensor, "128*Q 128*P"],
    sx: Float32[Tensor, "M P"], sw: Float32[Tensor, "Q P"],
) -> Float32[Tensor, "M 128*Q"]:  # fmt: skip
    """x w^T of the dequantised operands."""
    blocks = torch.einsum("mpk,npk->pmn", x.unflatten(1, (-1, 128)), w.unflatten(1, (-1, 128)))
    return (blocks * sx.T[:, :, None] * sw.T.repeat_interleave(128, 1)[:, None]).sum(0)


@triton.jit
def _product(X, W, SX, SW, Y, M, N, K, BUG: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for p in range(K // 128):
        k = p * 128 + tl.arange(0, 128)
        x = tl.load(X + m[:, None] * K + k, (m < M)[:, None], 0.0)
        w = tl.load(W + n * K + k[:, None])
        sx = tl.load(SX + m * (K // 128) + p, m < M, 0.0)
        sw = tl.load(SW + n // 128 * (K // 128) + (tl.maximum(p - 1, 0) if BUG else p))
        total += tl.dot(x, w) * sx[:, None] * sw  # the sums of a block keep 14 bits on sm_90, those of blocks float32
    tl.store(Y + m[:, None] * N + n, total.to(Y.dtype.element_ty), (m < M)[:, None])


def _multiplied(x, w, sx, sw, bug):
    x, w, sx, sw = (each.contiguous() for each in (x, w, sx, sw))
    (m, k), n = x.shape, w.shape[0]
    y = torch.empty(m, n, dtype=torch.float32, device=x.device)
    _product[triton.cdiv(m, 64), triton.cdiv(n, 64)](x, w, sx, sw, y, m, n, k, bug, 64, 64)
    return y


@gradoracle.kernel(block_scales, claims=("forward",), contracts={"float32": gradoracle.PRESETS["ieee32-fp8"]})
def right(x, w, sx, sw):
    return _multiplied(x, w, sx, sw, False)


@gradoracle.kernel(block_scales, claims=("forward",), contracts={"float32": gradoracle.PRESETS["ieee32-fp8"]})
def wrong(x, w, sx, sw):
    """The scale of w is that of the block before."""
    return _multiplied(x, w, sx, sw, True)
