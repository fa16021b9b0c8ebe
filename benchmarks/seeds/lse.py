"""Seed 001: the backward of LSE with softcap, sinks and groups; the fused dq from partials; the cost of 16 bits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .figures import Rows, Tensors, logits, normal, off, rebuilt, rounded, vjp, zeros


def rows() -> Rows:
    B, H, T, M, D, N = 2, 4, 32, 64, 16, 16
    q, k = normal(B, H, T, D), normal(B, H, M, D)
    q, g = q / math.sqrt(D), normal(B, H, T)  # the scale is in q, as in splash attention

    def logsumexp(q: Tensor, k: Tensor, softcap: float | None = None, sinks: Tensor | None = None) -> Tensor:
        s = q @ k.mT
        s = s if softcap is None else softcap * torch.tanh(s / softcap)
        s = s if sinks is None else torch.cat([s, sinks[:, None, None].expand(*s.shape[:3], 1)], -1)
        return torch.logsumexp(s, -1)

    def gradients(q: Tensor, k: Tensor, softcap: float | None = None, factor: bool = False) -> Tensors:
        """The seed's ds = g P, or with the factor 1 - tanh(S / softcap)^2."""
        raw = q @ k.mT
        cap = raw if softcap is None else torch.tanh(raw / softcap)
        ds = g[..., None] * torch.softmax(cap if softcap is None else softcap * cap, -1)
        ds = ds * (1 - cap.square()) if factor else ds
        return ds @ k, ds.mT @ q

    yield "dQ, dK of the seed, against torch.func.vjp", off(gradients(q, k), vjp(logsumexp, (q, k), g))
    capped = vjp(lambda q, k: logsumexp(q, k, 2.0), (q, k), g)
    for name, own, true in zip(("dQ", "dK"), gradients(q, k, 2.0), capped, strict=True):
        yield f"{name} with softcap 2, no factor", off(own, true)
    yield "both with the factor 1 - tanh^2", off(gradients(q, k, 2.0, True), capped)
    sinks = normal(H)
    dsinks = vjp(lambda q, k, sinks: logsumexp(q, k, None, sinks), (q, k, sinks), g)[2]
    shares = (g * torch.exp(sinks[:, None] - logsumexp(q, k, None, sinks))).sum((0, 2))
    yield "dsinks = sum of g e^(sink - lse), against torch.func.vjp", off(shares, dsinks)
    yield "largest of dsinks, which is returned as None", float(dsinks.abs().max())
    one = k[:, :1]
    shared = vjp(lambda q, k: logsumexp(q, k.expand(B, H, M, D)), (q, one), g)[1]
    last = gradients(q, one.expand(B, H, M, D))[1][:, -1:]
    yield "dK of 4 query heads on one key head, one head's alone", off(last, shared)

    def fused(member: int, fill: str, causal: bool, buffer: Tensor | None = None) -> Tensor:
        """dq of a batch member by the seed's step 1, from partials in a buffer; the last query sees the last key.

        ``scratch``: no step sets the scratch of a tile to 0; ``skipped``: tiles ruled out by causality write nothing.
        """
        buffer = zeros(M // N, H, T, D) if buffer is None else buffer
        own, keys, weights = q[member], k[member], g[member]
        seen = torch.ones(T, M, dtype=torch.bool).tril(M - T if causal else M)
        p, scratch = torch.softmax(torch.where(seen, own @ keys.mT, -torch.inf), -1), zeros(N, D)
        for tile in range(M // N):
            columns = slice(tile * N, (tile + 1) * N)
            for head in range(H):
                for rows in (slice(start, start + N) for start in range(0, T, N)):
                    if fill == "skipped" and not bool(seen[rows, columns].any()):
                        continue
                    scratch = scratch if fill == "scratch" else torch.zeros_like(scratch)
                    scratch = scratch + (weights[head, rows, None] * p[head, rows, columns]) @ keys[head, columns]
                    buffer[tile, head, rows] = scratch
        return buffer.sum(0)

    true = fused(0, "correct", False)
    yield "fused dq with everything filled, against torch.func.vjp", off(true, vjp(logsumexp, (q, k), g)[0][0])
    for name, causal in (("", False), (", causal", True)):
        true = fused(0, "correct", causal)
        yield f"fused dq, scratch not set to 0 at each step{name}", off(fused(0, "scratch", causal), true)
    stale = zeros(M // N, H, T, D)
    fused(1, "correct", False, stale)
    yield "fused dq, causal, skipped tiles keep an earlier call's", off(fused(0, "skipped", True, stale), true)
    short, kept = k[..., : M - 8, :], (M - 8) // N * N
    lost = (g[..., None] * torch.softmax(q @ short.mT, -1))[..., :kept] @ short[..., :kept, :]
    yield f"dq with M = {M - 8} in M // {N} tiles, the tail left out", off(lost, gradients(q, short)[0])

    def partials(q: Tensor, k: Tensor, dtype: torch.dtype, running: bool) -> Tensor:
        """dq in bfloat16 from partials stored in a dtype and summed in float64, or by a running sum in that dtype."""
        p, total = torch.softmax(q @ k.mT, -1), torch.zeros_like(q)
        for keys in (slice(start, start + N) for start in range(0, M, N)):
            total = total + rounded((g[..., None] * p[..., keys]) @ k[..., keys, :], dtype)
            total = rounded(total, dtype) if running else total
        return rounded(total, torch.bfloat16)

    turns = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat_interleave(N).repeat(M // N // 2)
    pairs = k[..., :N, :].repeat(1, 1, M // N, 1) * turns[:, None]
    for name, given in (("", (q, k)), (", keys that cancel between tiles", (q / 10, pairs))):
        own = tuple(rounded(x, torch.bfloat16) for x in given)
        for stored, dtype, running in (
            ("partials in float32", torch.float32, False),
            ("partials in bfloat16", torch.bfloat16, False),
            ("a running sum in bfloat16", torch.bfloat16, True),
        ):
            yield f"dq in bfloat16, {stored}{name}", off(partials(*own, dtype, running), gradients(*own)[0])
    q16, k16 = (rounded(x, torch.bfloat16) for x in (q, k))
    p, product = torch.softmax(q16 @ k16.mT, -1), rounded(g, torch.float32)[..., None] * q16
    early = p.mT @ rounded(product, torch.bfloat16)
    yield "dK, everything exact but g q rounded to bfloat16 beforehand", off(early, p.mT @ product)
    masked = -0.7 * torch.finfo(torch.float32).max  # splash attention's mask value
    s = torch.full((1, 128), masked, dtype=torch.float32)
    whole = torch.logsumexp(s, -1, keepdim=True)
    yield "lse - mask value of a row of 128 masked keys", float((whole - masked).abs())
    yield "sum of the P of that row", f"{float(torch.exp(s - whole).sum()):g}"
    s = logits()
    for name, through_log in (("(m, l)", False), ("the lse", True)):
        yield f"P rebuilt from {name} at logits 2e4, float32", rebuilt(s, through_log)
    for length, heads in ((8192, 32), (2048, 8)):
        numbers = -(-length // 128) * heads * length * 128
        name = f"bytes of partial dq, length {length}, {heads} heads"
        yield name, f"{4 * numbers} in float32, {2 * numbers} in bfloat16"
    yield "bytes of dq itself in float32, length 8192, 32 heads", f"{4 * 32 * 8192 * 128}"
