"""Weights in int8 with a scale for each output, next to activations in 16 bits: forward and dgrad.

gradoracle check examples/eight_bit/int8_weights.py:right
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int8
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 40), "N": gradoracle.sizes(1, 40), "K": gradoracle.sizes(1, 70)},
    domains={"w": gradoracle.Bits(8)},
    dtypes=("bfloat16", "float32"),
)
def int8_linear(x: Float[Tensor, "M K"], w: Int8[Tensor, "N K"], scale: Float32[Tensor, "N"]) -> Float[Tensor, "M N"]:
    """x w^T, with a scale for each row of w."""
    return x @ w.to(x.dtype).T * scale


@triton.jit
def _product(
    A, W, S, Y, M, N, K, am, ak, wn, wk, OUT: tl.constexpr, IN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y [M N] = a [M K] w [N K]^T, with a scale for each n (OUT) or each k (IN)."""
    m = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)  # strides may be large
    n = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = (start + tl.arange(0, BK)).to(tl.int64)
        a = tl.load(A + m[:, None] * am + k * ak, (m < M)[:, None] & (k < K), 0.0)
        if IN:
            a = (a.to(tl.float32) * tl.load(S + k, k < K, 0.0)).to(a.dtype)
        w = tl.load(W + n * wn + k[:, None] * wk, (n < N) & (k < K)[:, None], 0)
        total = tl.dot(a, w.to(a.dtype), total, input_precision="ieee")
    if OUT:
        total *= tl.load(S + n, n < N, 0.0)
    tl.store(Y + m[:, None] * N + n, total.to(Y.dtype.element_ty), (m < M)[:, None] & (n < N))


def _multiplied(a, w, scale, out, inside):
    (m, k), n = a.shape, w.shape[0]
    y = torch.empty(m, n, dtype=a.dtype, device=a.device)
    _product[triton.cdiv(m, 16), triton.cdiv(n, 16)](
        a, w, scale, y, m, n, k, *a.stride(), *w.stride(), out, inside, 16, 16, 32
    )
    return y


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, scale, bug):
        scale = scale.contiguous()
        ctx.save_for_backward(w, scale)
        ctx.bug = bug
        return _multiplied(x, w, scale, True, False)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        w, scale = ctx.saved_tensors
        return _multiplied(g, w.T, scale, False, not ctx.bug), None, None, None


@gradoracle.kernel(int8_linear, no_gradient=("scale",), claims=("forward", "vjp"))
def right(x, w, scale):
    return _Linear.apply(x, w, scale, False)


@gradoracle.kernel(int8_linear, no_gradient=("scale",), claims=("forward", "vjp"))
def wrong(x, w, scale):
    """dgrad leaves the scales out."""
    return _Linear.apply(x, w, scale, True)
