r"""Entmax and the attention of AdaSplash, whose weights are the 1.5-entmax of the scores.

pip install --no-deps adasplash==0.2.2
gradoracle check examples/packages/adasplash_attention.py:entmax15 --dtype float32

AdaSplash autotunes unless it sees TRITON_INTERPRET; it is imported, and called, as where there is a GPU.
"""

from __future__ import annotations

import adasplash as ada
import torch
from entmax_terms import entmax
from jaxtyping import Float
from torch import Tensor

import gradoracle

ROWS = {"B": gradoracle.sizes(1, 8), "N": gradoracle.sizes(1, 120)}
HEADS = {
    "B": gradoracle.sizes(1, 2),
    "H": gradoracle.sizes(1, 2),
    "T": gradoracle.choices(16, 32, 64),
    "D": gradoracle.choices(16, 32),
}


@gradoracle.family(dims=ROWS)
def alpha_one_and_a_half(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return entmax(x, 1.5)


@gradoracle.kernel(alpha_one_and_a_half, needs_cuda=True)
def entmax15(x):
    return ada.triton_entmax15(x.contiguous())


@gradoracle.kernel(alpha_one_and_a_half, needs_cuda=True)
def entmax_v1(x):
    return ada.triton_entmax_v1(x.contiguous(), fast_math=False)


@gradoracle.family(dims={**ROWS, "N": gradoracle.sizes(1, 40)}, options={"alpha": (1.5, 1.25, 2.0)})
def any_alpha(x: Float[Tensor, "B N"], *, alpha: float = 1.5) -> Float[Tensor, "B N"]:
    return entmax(x, alpha)


@gradoracle.kernel(any_alpha, needs_cuda=True)
def entmax_of_alpha(x, *, alpha=1.5):
    return ada.triton_entmax(x.contiguous(), alpha)


@gradoracle.family(dims=ROWS)
def alpha_two(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return entmax(x, 2.0)


@gradoracle.kernel(alpha_two, needs_cuda=True)
def sparsemax(x):
    return ada.triton_sparsemax(x.contiguous())


@gradoracle.family(dims=HEADS, options={"causal": (False, True)})
def sparse_attention(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H T D"], v: Float[Tensor, "B H T D"], *, causal: bool = False
) -> Float[Tensor, "B H T D"]:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        t = torch.arange(q.shape[-2])
        seen = t <= t[:, None]
        hidden = torch.where(seen, scores, -torch.inf).amax(-1, keepdim=True).detach() - 4  # below every threshold
        scores = torch.where(seen, scores, hidden)
    return entmax(scores, 1.5) @ v


@gradoracle.kernel(sparse_attention, needs_cuda=True)
def attention_v1(q, k, v, *, causal=False):
    return ada.adasplash_v1(q.contiguous(), k.contiguous(), v.contiguous(), is_causal=causal)


@gradoracle.kernel(sparse_attention, needs_cuda=True)
def attention_without_block_mask(q, k, v, *, causal=False):
    return ada.adasplash_no_block_mask(q.contiguous(), k.contiguous(), v.contiguous(), is_causal=causal)


@gradoracle.family(dims={**HEADS, "T": gradoracle.choices(64)})
def causal_sparse_attention(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H T D"], v: Float[Tensor, "B H T D"]
) -> Float[Tensor, "B H T D"]:
    return sparse_attention.definition(q, k, v, causal=True)


@gradoracle.kernel(causal_sparse_attention, needs_cuda=True)
def attention_v2(q, k, v):
    return ada.adasplash_v2(q.contiguous(), k.contiguous(), v.contiguous())
