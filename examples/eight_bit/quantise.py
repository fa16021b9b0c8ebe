"""Rows of 8-bit floats and the scale of each: amax / 448, a division, a cast.

gradoracle check examples/eight_bit/quantise.py:right
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float8e4m3fn, Float32
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 20), "N": gradoracle.sizes(1, 300)}, dtypes=("bfloat16",), outputs=("q", "scale")
)
def quantise(x: Float[Tensor, "M N"]) -> tuple[Float8e4m3fn[Tensor, "M N"], Float32[Tensor, "M"]]:
    """x / scale, which storing rounds, and scale = amax / 448 of each row."""
    scale = x.abs().amax(-1).clamp(min=1e-12) / 448
    return x / scale[:, None], scale


@triton.jit
def _rows(X, Q, S, N, stride, LARGEST: tl.constexpr, BN: tl.constexpr):
    m, n = tl.program_id(0).to(tl.int64), tl.arange(0, BN)
    x = tl.load(X + m * stride + n, n < N, 0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x)), 1e-12) / LARGEST
    tl.store(Q + m * N + n, (x / scale).to(tl.float8e4nv), n < N)
    tl.store(S + m, scale)


def _quantised(x, largest):
    x = x.contiguous()
    m, n = x.shape
    q = torch.empty(m, n, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(m, dtype=torch.float32, device=x.device)
    _rows[(m,)](x, q, scale, n, x.stride(0), largest, triton.next_power_of_2(n))
    return q, scale


@gradoracle.kernel(quantise, claims=("forward",))
def right(x):
    return _quantised(x, 448.0)


@gradoracle.kernel(quantise, claims=("forward",))
def wrong(x):
    """240 is the largest number of another e4m3, that of AMD."""
    return _quantised(x, 240.0)
