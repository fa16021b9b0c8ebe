"""Attention of packed sequences, dK and dV in Triton: the correct kernel, and released bugs of entries without rows.

The forward and dQ are eager PyTorch, all arithmetic is in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle
from gradoracle.mutation.bugs import Bugs

ROWS = 16  # keys, and queries, of a block


@gradoracle.family(
    dims={
        "T": gradoracle.sizes(1, 60), "M": gradoracle.sizes(1, 60), "S": gradoracle.sizes(1, 6),
        "D": gradoracle.sizes(1, 32), "Dv": gradoracle.sizes(1, 32),
    },
    domains={
        "cu_q": gradoracle.IndexDomain("T", kind="cu_seqlens"), "cu_k": gradoracle.IndexDomain("M", kind="cu_seqlens"),
    },
)  # fmt: skip
def packed(
    q: Float[Tensor, "T D"],
    k: Float[Tensor, "M D"],
    v: Float[Tensor, "M Dv"],
    cu_q: Int[Tensor, "S+1"],
    cu_k: Int[Tensor, "S+1"],
) -> Float[Tensor, "T Dv"]:
    """softmax(q k^T / sqrt(D)) v, entry by entry; a query of an entry without keys gives 0."""
    seen = _entry(cu_q, q.shape[0])[:, None] == _entry(cu_k, k.shape[0])[None, :]
    sees = seen.any(-1, keepdim=True)
    s = q @ k.transpose(0, 1) * q.shape[-1] ** -0.5
    s = torch.where(sees, torch.where(seen, s, -torch.inf), 0.0)
    return torch.where(sees, torch.softmax(s, -1), 0.0) @ v


def _entry(offsets: Tensor, rows: int) -> Tensor:
    """[rows], the entry that each packed row belongs to."""
    return (offsets[None, 1:-1] <= torch.arange(rows)[:, None]).sum(-1)


@triton.jit
def _dk_dv(Q, V, G, P, Delta, DK, DV, CuQ, CuK, M, D, Dv, factor, longest, q_t, q_d, v_m, v_d, g_t, g_d,
           cu_q_s, cu_k_s, CLEARED: tl.constexpr, BY_LONGEST: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip  # noqa: E501
    """dK and dV of one block of the keys of one entry."""
    entry = tl.program_id(1)
    first_q, end_q = tl.load(CuQ + entry * cu_q_s), tl.load(CuQ + (entry + 1) * cu_q_s)
    first_k, end_k = tl.load(CuK + entry * cu_k_s), tl.load(CuK + (entry + 1) * cu_k_s)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    width = tl.arange(0, WIDTH)
    here = n < end_k - first_k
    n = n + first_k
    to_k, to_v = DK + n[:, None] * D + width[None, :], DV + n[:, None] * Dv + width[None, :]
    zeros = tl.zeros((ROWS, WIDTH), tl.float32)
    if (end_q == first_q) | (end_k == first_k):
        if CLEARED:
            bound = (n - first_k < longest) if BY_LONGEST else here
            tl.store(to_k, zeros.to(DK.dtype.element_ty), mask=bound[:, None] & (width < D)[None, :])
            tl.store(to_v, zeros.to(DV.dtype.element_ty), mask=bound[:, None] & (width < Dv)[None, :])
    else:
        of_k, of_v = here[:, None] & (width < D)[None, :], here[:, None] & (width < Dv)[None, :]
        v = tl.load(V + n[:, None] * v_m + width[None, :] * v_d, mask=of_v, other=0.0).to(tl.float32)
        dk, dv = zeros, zeros
        for start in range(first_q, end_q, ROWS):
            t = start + tl.arange(0, ROWS)
            row = t < end_q
            q = tl.load(
                Q + t[:, None] * q_t + width[None, :] * q_d, mask=row[:, None] & (width < D)[None, :], other=0.0
            )
            g = tl.load(
                G + t[:, None] * g_t + width[None, :] * g_d, mask=row[:, None] & (width < Dv)[None, :], other=0.0
            )
            q, g = q.to(tl.float32), g.to(tl.float32)
            delta = tl.load(Delta + t, mask=row, other=0.0)
            p = tl.load(P + t[:, None] * M + n[None, :], mask=row[:, None] & here[None, :], other=0.0)
            ds = p * (tl.dot(g, tl.trans(v), input_precision="ieee") - delta[:, None]) * factor
            dv += tl.dot(tl.trans(p), g, input_precision="ieee")
            dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
        tl.store(to_k, dk.to(DK.dtype.element_ty), mask=of_k)
        tl.store(to_v, dv.to(DV.dtype.element_ty), mask=of_v)


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, cleared: bool, by_longest: bool
    ) -> Tensor:
        ctx.factor, ctx.cleared, ctx.by_longest = q.shape[-1] ** -0.5, cleared, by_longest
        seen = _entry(cu_q, q.shape[0])[:, None] == _entry(cu_k, k.shape[0])[None, :]
        s = torch.where(seen, q.float() @ k.float().mT * ctx.factor, -torch.inf)
        p = torch.where(seen, torch.softmax(s, -1), 0.0)  # a row without a key is NaN, and then 0
        o = p @ v.float()
        ctx.save_for_backward(q, k, v, cu_q, cu_k, p, o)
        return o.to(q.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        q, k, v, cu_q, cu_k, p, o = ctx.saved_tensors
        (keys, d), dv = k.shape, v.shape[1]
        delta = (g.float() * o).sum(-1)
        dq = p * (g.float() @ v.float().mT - delta[:, None]) @ k.float() * ctx.factor
        dk, dvalues = torch.empty((keys, d), dtype=k.dtype), torch.empty((keys, dv), dtype=v.dtype)
        longest = int(cu_k.diff().max())
        _dk_dv[(triton.cdiv(longest, ROWS), len(cu_q) - 1)](
            q, v, g, p, delta, dk, dvalues, cu_q, cu_k, keys, d, dv, ctx.factor, longest, *q.stride(),
            *v.stride(), *g.stride(), *cu_q.stride(), *cu_k.stride(), CLEARED=ctx.cleared, BY_LONGEST=ctx.by_longest,
            ROWS=ROWS, WIDTH=max(16, triton.next_power_of_2(max(d, dv))),
        )  # fmt: skip
        return dq.to(q.dtype), dk, dvalues, None, None, None, None


@gradoracle.kernel(packed)
def right(q, k, v, cu_q, cu_k):
    """The correct kernel: keys of an entry without queries have gradients of 0, which are stored."""
    return _Packed.apply(q, k, v, cu_q, cu_k, True, False)


BUGS = Bugs(right)


@BUGS.of("Dao-AILab/flash-attention#2421", "no_memory_is_left_unwritten", "stale")
@gradoracle.kernel(packed)
def keys_without_queries_left_as_they_were(q, k, v, cu_q, cu_k):
    """Dao-AILab/flash-attention#2421: dK and dV of an entry without queries were NaN.

    Where an entry has no block of queries the program returned before it stored zeros.
    """
    return _Packed.apply(q, k, v, cu_q, cu_k, False, False)


@BUGS.of("Dao-AILab/flash-attention@a3a257c7", "every_access_stays_inside_its_tensor", "access")
@gradoracle.kernel(packed)
def zeros_stored_by_the_longest_length(q, k, v, cu_q, cu_k):
    """Dao-AILab/flash-attention@a3a257c7: with an entry of no keys, the backward wrote beyond its tensors.

    What is stored where there is nothing to compute was bounded by the longest length, not by the entry's own.
    """
    return _Packed.apply(q, k, v, cu_q, cu_k, True, True)
