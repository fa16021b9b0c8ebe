"""The streaming semi-CRF of torch-semimarkov, written anew from its documented recursion, as a peer in benchmarks.

The package, named flash-semicrf today, is licensed for noncommercial use only and is not copied here. Its scheme: one
program a sequence goes through the positions one after the other and through the durations of each; the last K alphas
are a ring in memory, kept every sqrt(T K) positions; backward, alpha is recomputed between two of these while beta, a
ring too, runs from the end and posteriors are added up. Two things differ in its favour: no norms are taken, since
everything is float64, and a barrier follows each store that other threads read.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _reached(alphas, at, modulus, cum, bias, steps, c, t, K, C: tl.constexpr, P: tl.constexpr):
    """alpha [P] of position t from those before it: alpha of t - k is row (at - k) % modulus of `alphas`."""
    known = c < C
    here = tl.load(cum + t * C + c, known, 0.0).to(tl.float64)
    peak = tl.full([P], float("-inf"), tl.float64)
    total = tl.zeros([P], tl.float64)
    for k in range(1, tl.minimum(K, t) + 1):
        before = tl.load(alphas + ((at - k) % modulus) * P + c)
        gain = here - tl.load(cum + (t - k) * C + c, known, 0.0) + tl.load(bias + (k - 1) * C + c, known, 0.0)
        score = before[:, None] + steps + gain[None, :]
        highest = tl.maximum(peak, tl.max(score, 0))
        total = total * tl.exp(peak - highest) + tl.sum(tl.exp(score - highest[None, :]), 0)
        peak = highest
    return peak + tl.log(total)


@triton.jit
def _transitions(transition, c, C: tl.constexpr):
    """[P P], label before x label: -inf for labels before that do not exist."""
    from_to = tl.load(transition + c[:, None] * C + c[None, :], (c < C)[:, None] & (c < C)[None, :], 0.0)
    return tl.where((c < C)[:, None], from_to.to(tl.float64), float("-inf"))


@triton.jit
def _forward(cum, transition, bias, ring, kept, last, T, K, interval, C: tl.constexpr, P: tl.constexpr):
    """ring [B 2K P], kept [B T/interval+1 K P], last [B P]."""
    b = tl.program_id(0).to(tl.int64)
    cum += b * (T + 1) * C
    ring += b * 2 * K * P
    kept += b * (T // interval + 1) * K * P
    c = tl.arange(0, P)
    steps = _transitions(transition, c, C)
    tl.store(ring + c, tl.zeros([P], tl.float64))
    tl.debug_barrier()
    for t in range(1, T + 1):
        alpha = _reached(ring, t, 2 * K, cum, bias, steps, c, t, K, C, P)
        tl.store(ring + (t % (2 * K)) * P + c, alpha)
        tl.debug_barrier()
        if t % interval == 0:
            for k in range(0, tl.minimum(K, t + 1)):
                row = tl.load(ring + ((t - k) % (2 * K)) * P + c)
                tl.store(kept + (t // interval * K + k) * P + c, row)
    tl.store(last + b * P + c, tl.load(ring + (T % (2 * K)) * P + c))


@triton.jit
def _backward(
    cum, transition, bias, kept, log_z, g, alphas, betas, dcum, dtransition, dbias, T, K, interval,
    C: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """alphas [B K+interval P], betas [B 2K P]; dcum [B T+1 C], dtransition [B C C], dbias [B K C], zero before."""
    b = tl.program_id(0).to(tl.int64)
    cum += b * (T + 1) * C
    dcum += b * (T + 1) * C
    kept += b * (T // interval + 1) * K * P
    alphas += b * (K + interval) * P
    betas += b * 2 * K * P
    dbias += b * K * C
    c = tl.arange(0, P)
    known = c < C
    steps = _transitions(transition, c, C)
    whole = tl.load(log_z + b)
    scale = tl.load(g + b).to(tl.float64)
    moved = tl.zeros([P, P], tl.float64)
    tl.store(betas + (T % (2 * K)) * P + c, tl.zeros([P], tl.float64))
    tl.debug_barrier()
    for segment in range(0, (T - 1) // interval + 1):
        first = ((T - 1) // interval - segment) * interval
        past = tl.minimum(first + interval, T)
        for k in range(0, tl.minimum(K, first + 1)):  # alpha of first - k is row K - 1 - k
            row = tl.load(kept + (first // interval * K + k) * P + c, (first > 0) & (c < P), 0.0)
            tl.store(alphas + (K - 1 - k) * P + c, row)
        tl.debug_barrier()
        for t in range(first + 1, past):
            alpha = _reached(alphas, K - 1 + t - first, K + interval, cum, bias, steps, c, t, K, C, P)
            tl.store(alphas + (K - 1 + t - first) * P + c, alpha)
            tl.debug_barrier()
        for back in range(0, past - first):
            t = past - 1 - back
            alpha = tl.load(alphas + (K - 1 + t - first) * P + c)
            here = tl.load(cum + t * C + c, known, 0.0).to(tl.float64)
            peak = tl.full([P], float("-inf"), tl.float64)
            total = tl.zeros([P], tl.float64)
            lost = tl.zeros([P], tl.float64)
            for k in range(1, tl.minimum(K, T - t) + 1):
                after = tl.load(betas + ((t + k) % (2 * K)) * P + c)
                there = tl.load(cum + (t + k) * C + c, known, 0.0).to(tl.float64)
                gain = there - here + tl.load(bias + (k - 1) * C + c, known, 0.0)
                score = tl.where(known[None, :], steps + (gain + after)[None, :], float("-inf"))
                highest = tl.maximum(peak, tl.max(score, 1))
                highest = tl.where(known, highest, 0.0)
                total = total * tl.exp(peak - highest) + tl.sum(tl.exp(score - highest[:, None]), 1)
                peak = highest
                posterior = tl.exp(alpha[:, None] + score - whole) * scale
                moved += posterior
                ends = tl.sum(posterior, 0)
                lost += ends
                place = dcum + (t + k) * C + c
                tl.store(place, tl.load(place, known, 0.0) + ends, known)
                place = dbias + (k - 1) * C + c
                tl.store(place, tl.load(place, known, 0.0) + ends, known)
            tl.store(betas + (t % (2 * K)) * P + c, peak + tl.log(total))
            place = dcum + t * C + c
            tl.store(place, tl.load(place, known, 0.0) - lost, known)
            tl.debug_barrier()
    pairs = known[:, None] & known[None, :]
    tl.store(dtransition + b * C * C + c[:, None] * C + c[None, :], moved, pairs)


class _LogZ(torch.autograd.Function):
    """(cum [B T+1 C], transition [C C], bias [K C]) -> log Z [B], float32."""

    @staticmethod
    def forward(ctx: Any, cum: Tensor, transition: Tensor, bias: Tensor) -> Tensor:
        (B, positions, C), K = cum.shape, len(bias)
        T, P = positions - 1, max(4, triton.next_power_of_2(C))
        interval = max(K, math.isqrt(T * K))
        kept = cum.new_empty((B, T // interval + 1, K, P), dtype=torch.float64)
        ring, last = (cum.new_empty(shape, dtype=torch.float64) for shape in ((B, 2 * K, P), (B, P)))
        _forward[(B,)](cum, transition, bias, ring, kept, last, T, K, interval, C, P)
        log_z = torch.logsumexp(last[:, :C], 1)
        ctx.save_for_backward(cum, transition, bias, kept, log_z)
        ctx.interval = interval
        return log_z.to(cum.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
        cum, transition, bias, kept, log_z = ctx.saved_tensors
        (B, positions, C), K, P = cum.shape, len(bias), kept.shape[-1]
        alphas, betas = (cum.new_empty((B, rows, P), dtype=torch.float64) for rows in (K + ctx.interval, 2 * K))
        found = [cum.new_zeros((B, *shape), dtype=torch.float64) for shape in ((positions, C), (C, C), (K, C))]
        _backward[(B,)](
            cum, transition, bias, kept, log_z, g, alphas, betas, *found, positions - 1, K, ctx.interval, C, P
        )  # fmt: skip
        dcum, dtransition, dbias = found
        return dcum.to(cum.dtype), dtransition.sum(0).to(cum.dtype), dbias.sum(0).to(cum.dtype)


def log_z(cum: Tensor, transition: Tensor, bias: Tensor) -> Tensor:
    """log Z [B] of full lengths, differentiable once.

    Args:
        cum: [B, T+1, C] float32, contiguous, T >= 1. transition: [C, C]. bias: [K, C].
    """
    return _LogZ.apply(cum, transition, bias)  # type: ignore[no-any-return]
