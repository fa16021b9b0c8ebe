"""Whether Triton's interpreter computes in bfloat16: plain Triton multiplies the raw 16-bit integers, silently."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import torch
import triton
import triton.language as tl


@triton.jit
def _square(x, product, SIZE: tl.constexpr):
    """Multiply x [SIZE, SIZE] by itself."""
    index = tl.arange(0, SIZE)
    tile = tl.load(x + index[:, None] * SIZE + index[None, :])
    tl.store(product + index[:, None] * SIZE + index[None, :], tl.dot(tile, tile))


@functools.cache
def interprets_bfloat16() -> bool:
    """Return whether a bfloat16 dot of the interpreter is correct on one 16x16 tile (2 ms, once).

    It runs in a thread of its own, since a kernel may first be called under torch.func, whose tensors have no memory.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_product_is_correct).result()


def _product_is_correct() -> bool:
    x = torch.eye(16, dtype=torch.bfloat16) * 3
    product = torch.empty(16, 16)
    _square[(1,)](x, product, SIZE=16)
    return bool(torch.equal(product, torch.eye(16) * 9))
