"""Decoding with a paged cache: a Triton kernel that has a forward only.

gradoracle check examples/modern/paged_decode.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle

PAGE = 4


@gradoracle.family(
    dims={
        "B": gradoracle.sizes(1, 3), "H": gradoracle.sizes(1, 3), "D": gradoracle.choices(16, 32),
        "P": gradoracle.sizes(1, 9), "M": gradoracle.sizes(1, 4),
    },
    domains={
        "pages": gradoracle.BlockTable("P", shared=True), "lengths": gradoracle.Lengths("M*4", minimum=1),
    },
)  # fmt: skip
def paged_decode(
    q: Float[Tensor, "B H D"], k: Float[Tensor, "P 4 H D"], v: Float[Tensor, "P 4 H D"],
    pages: Int[Tensor, "B M"], lengths: Int[Tensor, "B"],
) -> Float[Tensor, "B H D"]:  # fmt: skip
    """Attention of one query a sequence over its first lengths[b] tokens, which lie in its pages."""
    keys, values = k[pages].flatten(1, 2), v[pages].flatten(1, 2)  # [B 4M H D]
    s = torch.einsum("bhd,bthd->bht", q, keys) * q.shape[-1] ** -0.5
    seen = torch.arange(keys.shape[1]) < lengths[:, None, None]
    return torch.einsum("bht,bthd->bhd", torch.softmax(torch.where(seen, s, -torch.inf), -1), values)


@triton.jit
def _decode(Q, K, V, PAGES, LENGTHS, O, H, M, scale, PAGE: tl.constexpr, D: tl.constexpr, BUG: tl.constexpr):
    b, h = tl.program_id(0), tl.program_id(1)
    d, slot = tl.arange(0, D), tl.arange(0, PAGE)
    q = tl.load(Q + (b * H + h) * D + d).to(tl.float32)
    length = tl.load(LENGTHS + b)
    m, l, o = float("-inf"), 0.0, tl.zeros((D,), tl.float32)
    for page in range(tl.cdiv(length, PAGE)):
        inside = page * PAGE + slot < (length + BUG)
        at = ((tl.load(PAGES + b * M + page) * PAGE + slot[:, None]) * H + h) * D + d
        k = tl.load(K + at, inside[:, None], 0.0).to(tl.float32)
        v = tl.load(V + at, inside[:, None], 0.0).to(tl.float32)
        s = tl.where(inside, tl.sum(q * k, 1) * scale, float("-inf"))
        new = tl.maximum(m, tl.max(s))
        p, keep = tl.exp(s - new), tl.exp(m - new)
        l, o, m = l * keep + tl.sum(p), o * keep + tl.sum(p[:, None] * v, 0), new
    tl.store(O + (b * H + h) * D + d, (o / l).to(O.dtype.element_ty))


def _decoded(q, k, v, pages, lengths, bug):
    q, k, v, pages, lengths = (each.contiguous() for each in (q, k, v, pages, lengths))
    b, h, d = q.shape
    o = torch.empty_like(q)
    _decode[b, h](q, k, v, pages, lengths, o, h, pages.shape[1], d**-0.5, PAGE, d, bug)
    return o.detach()


@gradoracle.kernel(paged_decode)
def right(q, k, v, pages, lengths):
    return _decoded(q, k, v, pages, lengths, 0)


@gradoracle.kernel(paged_decode)
def wrong(q, k, v, pages, lengths):
    """It sees one token too many, unless that begins a page."""
    return _decoded(q, k, v, pages, lengths, 1)
