"""A linear layer in training with a scale for each tensor: forward, dgrad and wgrad read 8-bit copies of x and w.

gradoracle check examples/eight_bit/fp8_linear.py:right
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float8e4m3fn, Float32
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 70), "N": gradoracle.sizes(1, 40), "K": gradoracle.sizes(1, 70)},
    dtypes=("bfloat16",),
)
def fp8_linear(
    x: Float[Tensor, "M K"], w: Float[Tensor, "N K"], x8: Float8e4m3fn[Tensor, "M K"], w8: Float8e4m3fn[Tensor, "N K"],
    sx: Float32[Tensor, "1"], sw: Float32[Tensor, "1"],
) -> Float[Tensor, "M N"]:  # fmt: skip
    """(sx x8) (sw w8)^T; the gradients of the dequantised copies go straight through to x and w."""
    return (x8.float() * sx + (x - x.detach())) @ (w8.float() * sw + (w - w.detach())).T


@triton.jit
def _product(
    A, B, SA, SB, Y, M, N, K, am, ak, bn, bk, WIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """y [M N] = sa a [M K] (sb b [N K])^T."""
    m = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)  # strides may be large
    n = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = (start + tl.arange(0, BK)).to(tl.int64)
        a = tl.load(A + m[:, None] * am + k * ak, (m < M)[:, None] & (k < K), 0.0)
        b = tl.load(B + n * bn + k[:, None] * bk, (n < N) & (k < K)[:, None], 0.0)
        total = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total) if WIDE else tl.dot(a, b, total)
    y = total * (tl.load(SA) * tl.load(SB))
    tl.store(Y + m[:, None] * N + n, y.to(Y.dtype.element_ty), (m < M)[:, None] & (n < N))


def _multiplied(a, b, sa, sb, dtype, wide):
    (m, k), n = a.shape, b.shape[0]
    y = torch.empty(m, n, dtype=dtype, device=a.device)
    _product[triton.cdiv(m, 64), triton.cdiv(n, 32)](
        a, b, sa, sb, y, m, n, k, *a.stride(), *b.stride(), wide, 64, 32, 32
    )
    return y


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, x8, w8, sx, sw, bug):
        ctx.save_for_backward(x8, w8, sx, sw)
        ctx.bug = bug
        return _multiplied(x8, w8, sx, sw, x.dtype, False)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x8, w8, sx, sw = ctx.saved_tensors
        one = torch.ones_like(sx)
        dx = _multiplied(g, w8.T, one, sx if ctx.bug else sw, g.dtype, True)
        return dx, _multiplied(g.T, x8.T, one, sx, g.dtype, True), None, None, None, None, None


FORM = {
    "no_gradient": ("x8", "w8", "sx", "sw"),
    "claims": ("forward", "vjp"),
    "contracts": {"bfloat16": gradoracle.PRESETS["bf16-fp8"]},
}


@gradoracle.kernel(fp8_linear, **FORM)
def right(x, w, x8, w8, sx, sw):
    return _Linear.apply(x, w, x8, w8, sx, sw, False)


@gradoracle.kernel(fp8_linear, **FORM)
def wrong(x, w, x8, w8, sx, sw):
    """dgrad takes the scale of x instead of that of w."""
    return _Linear.apply(x, w, x8, w8, sx, sw, True)
