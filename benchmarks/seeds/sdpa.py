"""Seed 000: derivatives of SDPA, centred and frozen; the HVP by differences and in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from .figures import Rows, Tensors, logits, normal, off, rebuilt, rounded, vjp


def rows() -> Rows:
    B, H, T, M, D, Dv = 2, 3, 33, 40, 16, 24
    scale = D**-0.5
    primals, tangents = (tuple(normal(B, H, *s) for s in ((T, D), (M, D), (M, Dv))) for _ in range(2))
    g = normal(B, H, T, Dv)
    (q, k, v), (tq, tk, tv) = primals, tangents

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT * scale, -1) @ v

    def gradients(q: Tensor, k: Tensor, v: Tensor, g: Tensor, centred: bool = True) -> Tensors:
        p, dp = torch.softmax(q @ k.mT * scale, -1), g @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) if centred else p * dp
        return ds @ k * scale, ds.mT @ q * scale, p.mT @ g

    def difference(step: float, dtype: torch.dtype) -> Tensors:
        """The seed's HVP: a central difference (bfloat16: inputs rounded to it, arithmetic in float32)."""
        arithmetic = torch.float32 if dtype == torch.bfloat16 else dtype
        ahead, behind = (
            gradients(*((x + h * t).to(dtype).to(arithmetic) for x, t in zip(*given, strict=True)), g.to(arithmetic))
            for given, h in (((primals, tangents), step), ((primals, tangents), -step))
        )
        return tuple((a.double() - b.double()) / (2 * step) for a, b in zip(ahead, behind, strict=True))

    o, true = torch.func.jvp(attention, primals, tangents)
    s, ts = q @ k.mT * scale, (tq @ k.mT + q @ tk.mT) * scale
    m, p = s.amax(-1, keepdim=True), torch.softmax(s, -1)
    l = torch.exp(s - m).sum(-1, keepdim=True)
    held = torch.func.jvp(lambda q, k, v: torch.exp(q @ k.mT * scale - m) / l @ v, primals, tangents)[1]
    mean = (p * ts).sum(-1, keepdim=True)
    tp = p * (ts - mean)
    yield "JVP of the seed (centred), against torch.func.jvp", off(tp @ v + p @ tv, true)
    yield "P * S' (not centred), against m and l held", off((p * ts) @ v + p @ tv, held)
    yield "m and l held, against the true JVP", off(held, true)
    yield "true JVP - held JVP, against -rowsum(P * S') * O", off(true - held, -mean * o)
    yield "VJP of the seed, against torch.func.vjp", off(gradients(*primals, g), vjp(attention, primals, g))
    yield "the same without z", off(gradients(*primals, g, False), vjp(attention, primals, g))
    exact = torch.func.jvp(lambda *x: vjp(attention, x, g), primals, tangents)[1]
    dp, tdp = g @ v.mT, g @ tv.mT
    z, tz = (dp * p).sum(-1, keepdim=True), (tdp * p + dp * tp).sum(-1, keepdim=True)
    ds, tds = p * (dp - z), tp * (dp - z) + p * (tdp - tz)
    closed = ((tds @ k + ds @ tk) * scale, (tds.mT @ q + ds.mT @ tq) * scale, tp.mT @ g)
    yield "exact HVP in closed form, against torch.func", off(closed, exact)
    for dtype, steps in (
        (torch.float64, (1e-4, 1e-5, 1e-6, 1e-7)),
        (torch.float32, (1e-1, 1e-2, 1e-3, 1e-4)),
        (torch.bfloat16, (1e-1, 1e-2, 1e-3)),
    ):
        for step in steps:
            name = f"HVP by a central difference, {str(dtype)[6:]}, step {step:g}"
            yield name, off(difference(step, dtype), exact)
    for through_log, name in ((False, "(m, l)"), (True, "the log-sum-exp")):
        yield f"P rebuilt from {name} at logits 2e4, float32", rebuilt(logits(), through_log)
    for name, z in (("dP * P", (dp * p).sum(-1)), ("G * O, O in bfloat16", (g * rounded(o, torch.bfloat16)).sum(-1))):
        yield f"largest row sum of dS, z from {name}", float((p * (dp - z[..., None])).sum(-1).abs().max())
