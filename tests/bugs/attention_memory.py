"""The backward of attention in Triton, two launches: correct, and released bugs of addresses, tails and barriers.

The forward is eager PyTorch. delta = rowsum(dO * O) is kept in a buffer padded to whole blocks of queries, which the
second launch loads without a mask; dQ is summed by atomics in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradoracle.mutation.bugs import Bugs

ROWS, COLUMNS = 16, 16  # queries and keys of a block of the second launch


@triton.jit
def _delta(O, G, Delta, H, T, Dv, g_batch, g_head, g_row, g_column, WRITTEN, PADDED, TILE: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip  # noqa: E501
    """Delta [B H PADDED]: rowsum(dO * O) of one tile of queries, stored in rows below WRITTEN."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    batch_head = tl.program_id(1)
    width = tl.arange(0, WIDTH)
    there = (at < T)[:, None] & (width < Dv)[None, :]
    o = tl.load(O + batch_head * T * Dv + at[:, None] * Dv + width[None, :], mask=there, other=0.0)
    head = G + (batch_head // H) * g_batch + (batch_head % H) * g_head
    g = tl.load(head + at[:, None] * g_row + width[None, :] * g_column, mask=there, other=0.0).to(tl.float32)
    tl.store(Delta + batch_head * PADDED + at, tl.sum(o * g, 1), mask=at < WRITTEN)


@triton.jit
def _gradients(Q, K, V, G, M, L, Delta, Scratch, DQ, DK, DV, H, T, M_KEYS, KEYS, D, Dv, factor, PADDED, shift,
               q_b, q_h, q_t, q_d, k_b, k_h, k_m, k_d, v_b, v_h, v_m, v_d, g_b, g_h, g_t, g_d, dv_b, dv_h, dv_m, dv_d,
               CAUSAL: tl.constexpr, BARRIER: tl.constexpr,
               ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """dK and dV of one block of the M_KEYS keys; dQ by atomics. KEYS bounds the keys, shift = M - T."""
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    batch_head = tl.program_id(1)
    b, h = batch_head // H, batch_head % H
    width = tl.arange(0, WIDTH)
    of_k, of_v = (n < KEYS)[:, None] & (width < D)[None, :], (n < KEYS)[:, None] & (width < Dv)[None, :]
    at_k = n[:, None] * D + width[None, :] + batch_head * M_KEYS * D  # of dK, contiguous
    k = tl.load(K + b * k_b + h * k_h + n[:, None] * k_m + width[None, :] * k_d, mask=of_k, other=0.0).to(tl.float32)
    v = tl.load(V + b * v_b + h * v_h + n[:, None] * v_m + width[None, :] * v_d, mask=of_v, other=0.0).to(tl.float32)
    dk, dv = tl.zeros((COLUMNS, WIDTH), tl.float32), tl.zeros((COLUMNS, WIDTH), tl.float32)
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    own = Scratch + (batch_head * tl.num_programs(0) + tl.program_id(0)) * ROWS * COLUMNS
    for start in range(0, PADDED, ROWS):
        t = start + i
        of_q, of_g = (t < T)[:, None] & (width < D)[None, :], (t < T)[:, None] & (width < Dv)[None, :]
        q = tl.load(Q + b * q_b + h * q_h + t[:, None] * q_t + width[None, :] * q_d, mask=of_q, other=0.0)
        g = tl.load(G + b * g_b + h * g_h + t[:, None] * g_t + width[None, :] * g_d, mask=of_g, other=0.0)
        q, g = q.to(tl.float32), g.to(tl.float32)
        m = tl.load(M + batch_head * T + t, mask=t < T, other=0.0)
        l = tl.load(L + batch_head * T + t, mask=t < T, other=1.0)
        delta = tl.load(Delta + batch_head * PADDED + t)  # whole blocks
        seen = (t < T)[:, None] & (n < KEYS)[None, :]
        if CAUSAL:
            seen = seen & (n[None, :] <= t[:, None] + shift)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
        p = tl.exp(tl.where(seen, s - m[:, None], float("-inf"))) / l[:, None]
        dp = tl.dot(g, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None]) * factor  # [ROWS COLUMNS]
        dv += tl.dot(tl.trans(p), g, input_precision="ieee")
        tl.store(own + i[:, None] * COLUMNS + j[None, :], ds)
        if BARRIER:
            tl.debug_barrier()
        turned = tl.load(own + i[None, :] * COLUMNS + j[:, None])  # [COLUMNS ROWS]
        dk += tl.dot(turned, q, input_precision="ieee")
        to = DQ + batch_head * T * D + t[:, None] * D + width[None, :]
        tl.atomic_add(to, tl.dot(ds, k, input_precision="ieee"), mask=of_q)
        tl.debug_barrier()
    tl.store(DK + at_k, dk.to(DK.dtype.element_ty), mask=of_k)
    to = DV + b * dv_b + h * dv_h + n[:, None] * dv_m + width[None, :] * dv_d
    tl.store(to, dv.to(DV.dtype.element_ty), mask=of_v)


@dataclass(frozen=True)
class Choices:
    """What the launches are given; each bug makes another choice.

    Attributes:
        tile: queries of a tile of the first launch, a multiple of the ``ROWS`` that its buffer is padded to.
        bounded: whether that launch stores no row beyond its buffer.
        cleared: whether it stores 0 into the padding.
        unit: whether it takes the last stride of dO for 1.
        like_k: whether dV is made like k and written by the strides of v.
        barrier: whether one stands between the store of dS and the load of its transpose.
        keys: the bound of keys is a multiple of this.
        strides_of_k: whether dK is made with the strides of k, and written as if it were dense.
    """

    tile: int = 32
    bounded: bool = True
    cleared: bool = True
    unit: bool = False
    like_k: bool = False
    barrier: bool = True
    keys: int = 1
    strides_of_k: bool = False


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, own: Choices) -> Tensor:
        ctx.factor, ctx.causal, ctx.own = q.shape[-1] ** -0.5 if scale is None else scale, causal, own
        s = q.float() @ k.float().mT * ctx.factor
        seen = torch.ones(s.shape[-2:], dtype=torch.bool).tril(s.shape[-1] - s.shape[-2] if causal else s.shape[-1])
        m = torch.where(seen, s, -torch.inf).amax(-1, keepdim=True)
        m = torch.where(m == -torch.inf, 0.0, m)
        p = torch.exp(torch.where(seen, s - m, -torch.inf))
        l = p.sum(-1, keepdim=True)
        l = torch.where(l == 0, 1.0, l)
        o = p / l @ v.float()
        ctx.save_for_backward(q, k, v, o, m, l)
        return o.to(q.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        q, k, v, o, m, l = ctx.saved_tensors
        own, (b, h, queries, d), (keys, dv) = ctx.own, q.shape, v.shape[-2:]
        padded, width = triton.cdiv(queries, ROWS) * ROWS, max(16, triton.next_power_of_2(max(d, dv)))
        delta = torch.empty((b * h, padded), dtype=torch.float32)
        written = triton.cdiv(queries, own.tile) * own.tile
        if own.bounded:
            written = min(written, padded if own.cleared else queries)
        last = 1 if own.unit else g.stride(-1)
        _delta[(triton.cdiv(queries, own.tile), b * h)](
            o, g, delta, h, queries, dv, *g.stride()[:-1], last, written, padded, TILE=own.tile, WIDTH=width
        )  # fmt: skip
        bound = triton.cdiv(keys, own.keys) * own.keys
        columns = triton.cdiv(bound, COLUMNS)
        dq = torch.zeros((b, h, queries, d), dtype=torch.float32)
        dk = torch.empty_strided(k.shape, k.stride() if own.strides_of_k else k.contiguous().stride(), dtype=k.dtype)
        dvalues = torch.empty_like(k) if own.like_k else torch.empty((b, h, keys, dv), dtype=v.dtype)
        scratch = torch.empty((b * h, columns, ROWS, COLUMNS), dtype=torch.float32)
        _gradients[(columns, b * h)](
            q, k, v, g, m, l, delta, scratch, dq, dk, dvalues, h, queries, keys, bound, d, dv, ctx.factor, padded,
            keys - queries, *q.stride(), *k.stride(), *v.stride(), *g.stride(),
            *(v if own.like_k else dvalues).stride(), CAUSAL=ctx.causal, BARRIER=own.barrier,
            ROWS=ROWS, COLUMNS=COLUMNS, WIDTH=width,
        )  # fmt: skip
        return dq.to(q.dtype), dk, dvalues, None, None, None


def right(q, k, v, *, scale=None, causal=False):
    """The correct kernel."""
    return _Attention.apply(q, k, v, scale, causal, Choices())


BUGS = Bugs(right, "sdpa")


@BUGS.of("facebookresearch/xformers#548", "any_layout_of_cotangents_is_right_or_refused", "layout")
def unit_stride_of_the_cotangent(q, k, v, *, scale=None, causal=False):
    """facebookresearch/xformers#548: the cotangent of ``out.sum().backward()``, which has strides of 0, was misread.

    The last stride of dO was taken for 1.
    """
    return _Attention.apply(q, k, v, scale, causal, Choices(unit=True))


@BUGS.of("Dao-AILab/flash-attention#818", "vjp_matches_the_oracle", "layout", D="16", Dv="16")
def dv_made_like_k(q, k, v, *, scale=None, causal=False):
    """Dao-AILab/flash-attention#818: dV was allocated with ``empty_like(k)``, and so lost the layout of v.

    The launch went on to address it by the strides of v.
    """
    return _Attention.apply(q, k, v, scale, causal, Choices(like_k=True))


@BUGS.of("Dao-AILab/flash-attention#2337", "every_access_stays_inside_its_tensor", "access")
def tile_of_another_kernel(q, k, v, *, scale=None, causal=False):
    """Dao-AILab/flash-attention#2337: the preprocessing launch took 128 rows a tile, its buffer was padded for 64.

    Its last tile stored rows that the buffer does not have.
    """
    return _Attention.apply(q, k, v, scale, causal, Choices(bounded=False))


@BUGS.of("pytorch/pytorch#119320", "nothing_is_loaded_before_it_is_written", "stale")
def tail_of_delta_unwritten(q, k, v, *, scale=None, causal=False):
    """pytorch/pytorch#119320: the memory-efficient backward in float32 gave NaN for some lengths.

    The cause is the corpus's: rows of delta beyond the last query are loaded with their block and were never written;
    P is 0 there, and 0 times NaN is NaN.
    """
    return _Attention.apply(q, k, v, scale, causal, Choices(cleared=False))


@BUGS.of("Dao-AILab/flash-attention@731f154d", "a_barrier_stands_between_a_store_and_a_load", "access")
def tile_reloaded_without_a_barrier(q, k, v, *, scale=None, causal=False):
    """Dao-AILab/flash-attention@731f154d: the Triton backward gave other gradients from run to run for some widths.

    A tile was loaded again for a product with no barrier after the store that made it.
    """
    return _Attention.apply(q, k, v, scale, causal, Choices(barrier=False))


@BUGS.of("pytorch/pytorch#136232", "every_access_stays_inside_its_tensor", "access")
def keys_bounded_by_the_mask(q, k, v, *, scale=None, causal=False):
    """pytorch/pytorch#136232: NaN in backward where the block mask was made for more keys than there are.

    The loop over keys ran to the length of the mask, here to the next multiple of 32.
    """
    return _Attention.apply(q, k, v, scale, causal, Choices(keys=32))


@BUGS.of("pytorch/pytorch#146377", "no_memory_is_left_unwritten", "layout")
def dk_with_the_strides_of_k(q, k, v, *, scale=None, causal=False):
    """pytorch/pytorch#146377: the gradient of K was garbage for some strides of K.

    By the corpus's cause it was allocated with strides that are not those by which it is written.
    """
    return _Attention.apply(q, k, v, scale, causal, Choices(strides_of_k=True))
