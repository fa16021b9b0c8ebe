"""dgrad of a linear layer in 8-bit floats: a scale for each 128 of a row of g, and for each 128 x 128 of w.

gradoracle check examples/eight_bit/block_dgrad.py:right
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float8e4m3fn, Float32
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 40), "Q": gradoracle.sizes(1, 3), "P": gradoracle.sizes(1, 2)},
    dtypes=("bfloat16",),
    outputs=("grad_x",),
)
def block_dgrad(
    g: Float8e4m3fn[Tensor, "M 128*Q"], w: Float8e4m3fn[Tensor, "128*Q 128*P"],
    sg: Float32[Tensor, "M Q"], sw: Float32[Tensor, "Q P"],
) -> Float[Tensor, "M 128*P"]:  # fmt: skip
    """g w of the dequantised operands, as w has its blocks in forward."""
    blocks = torch.einsum("mqn,qnk->qmk", g.unflatten(1, (-1, 128)), w.unflatten(0, (-1, 128)))
    return (blocks * sg.T[:, :, None] * sw.repeat_interleave(128, 1)[:, None]).sum(0)


@triton.jit
def _product(G, W, SG, SW, DX, M, N, K, BUG: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    m, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BK + tl.arange(0, BK)
    total = tl.zeros((BM, BK), tl.float32)
    for q in range(N // 128):
        n = q * 128 + tl.arange(0, 128)
        g = tl.load(G + m[:, None] * N + n, (m < M)[:, None], 0.0)
        w = tl.load(W + n[:, None] * K + k)
        at = k // 128 * (N // 128) + q if BUG else q * (K // 128) + k // 128
        sg = tl.load(SG + m * (N // 128) + q, m < M, 0.0)
        total += tl.dot(g, w) * sg[:, None] * tl.load(SW + at)
    tl.store(DX + m[:, None] * K + k, total.to(DX.dtype.element_ty), (m < M)[:, None])


def _multiplied(g, w, sg, sw, bug):
    g, w, sg, sw = (each.contiguous() for each in (g, w, sg, sw))
    (m, n), k = g.shape, w.shape[1]
    dx = torch.empty(m, k, dtype=torch.bfloat16, device=g.device)
    _product[triton.cdiv(m, 64), triton.cdiv(k, 64)](g, w, sg, sw, dx, m, n, k, bug, 64, 64)
    return dx


FORM = {"claims": ("forward",), "contracts": {"bfloat16": gradoracle.PRESETS["bf16-fp8"]}}


@gradoracle.kernel(block_dgrad, **FORM)
def right(g, w, sg, sw):
    return _multiplied(g, w, sg, sw, False)


@gradoracle.kernel(block_dgrad, **FORM)
def wrong(g, w, sg, sw):
    """The scales of w are read as if they were transposed."""
    return _multiplied(g, w, sg, sw, True)
