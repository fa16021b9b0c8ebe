"""A grouped product: the tokens of each expert, between its offsets, with its weights. A Triton kernel.

gradoracle check examples/modern/grouped_gemm.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle

SIZES = {
    "T": gradoracle.sizes(1, 40), "E": gradoracle.sizes(1, 5),
    "K": gradoracle.sizes(1, 20), "N": gradoracle.sizes(1, 20),
}  # fmt: skip


@gradoracle.family(dims=SIZES, domains={"offsets": gradoracle.Offsets("T")})
def grouped_gemm(
    x: Float[Tensor, "T K"], w: Float[Tensor, "E K N"], offsets: Int[Tensor, "E+1"]
) -> Float[Tensor, "T N"]:
    """out[t] = x[t] w[e] for offsets[e] <= t < offsets[e + 1]."""
    expert = (torch.arange(x.shape[0])[:, None] >= offsets[None, 1:-1]).sum(1)
    return (x[:, None] @ w[expert])[:, 0]


@triton.jit
def _rows(X, W, OFFSETS, OUT, K, N, TRANSPOSED: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """out[t] = x[t] w[e] for the tokens of an expert, or x[t] w[e]^T, where x has K columns."""
    e = tl.program_id(0)
    n, k = tl.arange(0, BN), tl.arange(0, BK)
    at = e * K * N + (n * K + k[:, None] if TRANSPOSED else k[:, None] * N + n)
    w = tl.load(W + at, (k < K)[:, None] & (n < N), 0.0)
    end = tl.load(OFFSETS + e + 1)
    for start in range(tl.load(OFFSETS + e), end, BT):
        t = start + tl.arange(0, BT)
        x = tl.load(X + t[:, None] * K + k, (t < end)[:, None] & (k < K), 0.0)
        out = tl.dot(x, w, input_precision="ieee")
        tl.store(OUT + t[:, None] * N + n, out.to(OUT.dtype.element_ty), (t < end)[:, None] & (n < N))


@triton.jit
def _weights(X, G, OFFSETS, DW, K, N, BUG: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    e = tl.program_id(0)
    n, k = tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BK, BN), tl.float32)
    begin, end = tl.load(OFFSETS + e), tl.load(OFFSETS + e + 1)
    for start in range(begin // BT * BT if BUG else begin, end, BT):
        t = start + tl.arange(0, BT)
        x = tl.load(X + t[:, None] * K + k, (t < end)[:, None] & (k < K), 0.0)
        g = tl.load(G + t[:, None] * N + n, (t < end)[:, None] & (n < N), 0.0)
        total = tl.dot(tl.trans(x), g, total, input_precision="ieee")
    tl.store(DW + (e * K + k[:, None]) * N + n, total.to(DW.dtype.element_ty), (k < K)[:, None] & (n < N))


def _block(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, offsets, bug):
        x, w, offsets = x.contiguous(), w.contiguous(), offsets.contiguous()
        experts, k, n = w.shape
        out = torch.empty(x.shape[0], n, dtype=x.dtype, device=x.device)
        _rows[(experts,)](x, w, offsets, out, k, n, False, 16, _block(n), _block(k))
        ctx.save_for_backward(x, w, offsets)
        ctx.bug = bug
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w, offsets = ctx.saved_tensors
        (experts, k, n), g = w.shape, g.contiguous()
        dx, dw = torch.empty_like(x), torch.empty_like(w)
        _rows[(experts,)](g, w, offsets, dx, n, k, True, 16, _block(k), _block(n))
        _weights[(experts,)](x, g, offsets, dw, k, n, ctx.bug, 16, _block(n), _block(k))
        return dx, dw, None, None


@gradoracle.kernel(grouped_gemm)
def right(x, w, offsets):
    return _Grouped.apply(x, w, offsets, False)


@gradoracle.kernel(grouped_gemm)
def wrong(x, w, offsets):
    """The gradient of an expert's weights begins at a multiple of the block, with tokens of the expert before it."""
    return _Grouped.apply(x, w, offsets, True)
