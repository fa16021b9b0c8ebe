"""What seed 000 claims of SDPA's derivatives, measured for docs/seeds.md: ``python benchmarks/seed_sdpa.py`` (CPU)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SIZES = (2, 3, 33, 40, 16, 24)  # B H T M D Dv


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v."""
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def gradients(q: Tensor, k: Tensor, v: Tensor, g: Tensor, centred: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """The seed's backward; ``centred=False`` leaves z out."""
    scale = q.shape[-1] ** -0.5
    p, dp = torch.softmax(q @ k.transpose(-1, -2) * scale, -1), g @ v.transpose(-1, -2)
    z = (dp * p).sum(-1, keepdim=True) if centred else 0.0
    ds = p * (dp - z)
    return ds @ k * scale, ds.transpose(-1, -2) @ q * scale, p.transpose(-1, -2) @ g


def tangent(primals: tuple[Tensor, ...], tangents: tuple[Tensor, ...], centred: bool) -> Tensor:
    """The seed's JVP; ``centred=False`` is what its name says: m and l frozen."""
    (q, k, v), (tq, tk, tv) = primals, tangents
    scale = q.shape[-1] ** -0.5
    p = torch.softmax(q @ k.transpose(-1, -2) * scale, -1)
    s = (tq @ k.transpose(-1, -2) + q @ tk.transpose(-1, -2)) * scale
    mean = (p * s).sum(-1, keepdim=True) if centred else 0.0
    return (p * (s - mean)) @ v + p @ tv


def frozen(primals: tuple[Tensor, ...], tangents: tuple[Tensor, ...]) -> Tensor:
    """The derivative of exp(S - m) / l v with m and l held, by torch.func."""
    q, k, _ = primals
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    m = s.amax(-1, keepdim=True)
    l = torch.exp(s - m).sum(-1, keepdim=True)

    def held(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.exp(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) - m) / l @ v

    return torch.func.jvp(held, primals, tangents)[1]


def hessian(primals: tuple[Tensor, ...], tangents: tuple[Tensor, ...], g: Tensor) -> tuple[Tensor, ...]:
    """The exact HVP in closed form (DESIGN 9)."""
    (q, k, v), (tq, tk, tv) = primals, tangents
    scale = q.shape[-1] ** -0.5
    p = torch.softmax(q @ k.transpose(-1, -2) * scale, -1)
    s = (tq @ k.transpose(-1, -2) + q @ tk.transpose(-1, -2)) * scale
    tp = p * (s - (p * s).sum(-1, keepdim=True))
    dp, tdp = g @ v.transpose(-1, -2), g @ tv.transpose(-1, -2)
    z, tz = (dp * p).sum(-1, keepdim=True), (tdp * p + dp * tp).sum(-1, keepdim=True)
    ds, tds = p * (dp - z), tp * (dp - z) + p * (tdp - tz)
    hk = (tds.transpose(-1, -2) @ q + ds.transpose(-1, -2) @ tq) * scale
    return (tds @ k + ds @ tk) * scale, hk, tp.transpose(-1, -2) @ g


def difference(
    primals: tuple[Tensor, ...], tangents: tuple[Tensor, ...], g: Tensor, step: float, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """The seed's HVP: a central difference in ``dtype`` (bfloat16: inputs rounded to it, arithmetic in float32)."""
    arithmetic = torch.float32 if dtype == torch.bfloat16 else dtype
    points = [
        [(x + sign * step * t).to(dtype).to(arithmetic) for x, t in zip(primals, tangents, strict=True)]
        for sign in (1, -1)
    ]
    ahead, behind = (gradients(*point, g.to(arithmetic)) for point in points)
    return tuple((a.double() - b.double()) / (2 * step) for a, b in zip(ahead, behind, strict=True))


def off(got: tuple[Tensor, ...] | Tensor, true: tuple[Tensor, ...] | Tensor) -> float:
    """Relative error in the 2-norm, all tensors together."""
    pairs = [(got, true)] if isinstance(got, Tensor) else list(zip(got, true, strict=True))
    return math.sqrt(sum(float((a - b).norm()) ** 2 for a, b in pairs) / sum(float(b.norm()) ** 2 for _, b in pairs))


def statistics_error(logit: float, through_log: bool) -> float:
    """The largest error of P in float32, rebuilt from (m, l) or from the log-sum-exp, at logits near ``logit``."""
    s = logit + 3 * torch.rand(64, 64, dtype=torch.float64)
    s = s.float()
    m = s.amax(-1, keepdim=True)
    l = torch.exp(s - m).sum(-1, keepdim=True)
    p = torch.exp(s - (m + l.log())) if through_log else torch.exp(s - m) / l
    return off(p.double(), torch.softmax(s.double(), -1))


def main() -> None:
    """Print one line a claim."""
    torch.manual_seed(0)
    b, h, t, m, d, dv = SIZES
    shapes = ((b, h, t, d), (b, h, m, d), (b, h, m, dv))
    primals, tangents = (tuple(torch.randn(s, dtype=torch.float64) for s in shapes) for _ in range(2))
    g = torch.randn(b, h, t, dv, dtype=torch.float64)
    o, true = torch.func.jvp(attention, primals, tangents)
    held, scale = frozen(primals, tangents), d**-0.5
    p = torch.softmax(primals[0] @ primals[1].transpose(-1, -2) * scale, -1)
    s = (tangents[0] @ primals[1].transpose(-1, -2) + primals[0] @ tangents[1].transpose(-1, -2)) * scale
    gap = -(p * s).sum(-1, keepdim=True) * o
    vjp = torch.func.vjp(attention, *primals)[1](g)
    tell("JVP of the seed (centred), against torch.func.jvp", off(tangent(primals, tangents, True), true))
    tell("P * S' (not centred), against m and l held", off(tangent(primals, tangents, False), held))
    tell("m and l held, against the true JVP", off(held, true))
    tell("true JVP - held JVP, against -rowsum(P * S') * O", off(true - held, gap))
    tell("VJP of the seed, against torch.func.vjp", off(gradients(*primals, g), vjp))
    tell("the same without z", off(gradients(*primals, g, False), vjp))

    def all_gradients(*x: Tensor) -> tuple[Tensor, ...]:
        return torch.func.vjp(attention, *x)[1](g)

    exact = torch.func.jvp(all_gradients, primals, tangents)[1]
    tell("exact HVP in closed form, against torch.func", off(hessian(primals, tangents, g), exact))
    for dtype, steps in (
        (torch.float64, (1e-4, 1e-5, 1e-6, 1e-7)),
        (torch.float32, (1e-1, 1e-2, 1e-3, 1e-4)),
        (torch.bfloat16, (1e-1, 1e-2, 1e-3)),
    ):
        for step in steps:
            name = f"HVP by a central difference, {str(dtype)[6:]}, step {step:g}"
            tell(name, off(difference(primals, tangents, g, step, dtype), exact))
    for through_log, name in ((False, "(m, l)"), (True, "the log-sum-exp")):
        tell(f"P rebuilt from {name} at logits 2e4, float32", statistics_error(2e4, through_log))
    dp = g @ primals[2].transpose(-1, -2)
    for name, z in (("dP * P", (dp * p).sum(-1)), ("G * O, O in bfloat16", (g * o.bfloat16().double()).sum(-1))):
        rows = (p * (dp - z[..., None])).sum(-1)
        tell(f"largest row sum of dS, z from {name}", float(rows.abs().max()))


def tell(what: str, number: float) -> None:
    """One line."""
    print(f"{what:60s} {number:.1e}")


if __name__ == "__main__":
    main()
