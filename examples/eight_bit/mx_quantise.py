"""Blocks of 32 in 8-bit floats and the exponent of each, in e8m0: that of the largest number of the block, less 8.

gradoracle check examples/eight_bit/mx_quantise.py:right
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float8e4m3fn, UInt8
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"M": gradoracle.sizes(1, 20), "P": gradoracle.sizes(1, 6)}, dtypes=("bfloat16",), outputs=("q", "code")
)
def mx_quantise(x: Float[Tensor, "M 32*P"]) -> tuple[Float8e4m3fn[Tensor, "M 32*P"], UInt8[Tensor, "M P"]]:
    """x / 2^e, which storing rounds, within 448; and e + 127, where 2^(e + 8) is at most the largest of a block."""
    blocks = x.unflatten(1, (-1, 32))
    e = torch.floor(torch.log2(blocks.abs().amax(-1).clamp(min=2.0**-100))) - 8
    return (blocks * torch.exp2(-e)[:, :, None]).clamp(-448, 448).flatten(1), (e + 127).to(torch.uint8)


@triton.jit
def _blocks(X, Q, CODE, BUG: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * 32 + tl.arange(0, 32)
    x = tl.load(X + i).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(x)), 2.0**-100)
    e = (tl.ceil(tl.log2(largest)) if BUG else tl.floor(tl.log2(largest))) - 8
    q = tl.clamp(x * tl.exp2(-e), -448.0, 448.0)
    tl.store(Q + i, q.to(tl.float8e4nv))
    tl.store(CODE + tl.program_id(0), (e + 127).to(tl.uint8))


def _quantised(x, bug):
    x = x.contiguous()
    m, n = x.shape
    q = torch.empty(m, n, dtype=torch.float8_e4m3fn, device=x.device)
    code = torch.empty(m, n // 32, dtype=torch.uint8, device=x.device)
    _blocks[(code.numel(),)](x, q, code, bug)
    return q, code


@gradoracle.kernel(mx_quantise, claims=("forward",))
def right(x):
    return _quantised(x, False)


@gradoracle.kernel(mx_quantise, claims=("forward",))
def wrong(x):
    """The exponent is rounded up."""
    return _quantised(x, True)
