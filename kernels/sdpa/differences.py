"""The HVP by central differences of the VJP: an approximation, kept for the property on how it converges."""

from __future__ import annotations

import torch

from ..arguments import positive
from .blocks import Blocks
from .explicit import vjp
from .guardrails import Gradients, check, check_like


def hvp_central_difference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    tq: torch.Tensor | None,
    tk: torch.Tensor | None,
    tv: torch.Tensor | None,
    *,
    step: float,
    scale: float | None = None,
    causal: bool = False,
    precision: str = "ieee",
    blocks: Blocks | None = None,
    needs: tuple[bool, bool, bool] = (True, True, True),
) -> Gradients:
    """Return (VJP(x + step t) - VJP(x - step t)) / (2 step) for x = (q, k, v), m and l computed anew at both points.

    Args:
        step: a finite number above 0. The error is O(step^2) plus rounding / step, as is that of the perturbed inputs:
            they are rounded to the dtype of q, so in 16 bits no step is good.
        q, k, v, g, tq, tk, tv, scale, causal, precision, blocks, needs: as of `hvp`.

    Copies q, k and v, each moved by its tangent. The difference is taken in float32 (float64 for float64).

    Raises:
        ValueError: naming the argument, the value given and what is expected.
    """
    step = positive("step", step)
    problem = check(q, k, v, scale=scale, causal=causal, precision=precision, blocks=blocks)
    wide = problem.statistics_dtype
    ahead, behind = [], []
    for name, primal, tangent in (("q", q, tq), ("k", k, tk), ("v", v, tv)):
        if tangent is None:
            ahead.append(primal)
            behind.append(primal)
            continue
        check_like(f"t{name}", tangent, name, primal, tuple(primal.shape))
        ahead.append(torch.add(primal.to(wide), tangent.to(wide), alpha=step).to(primal.dtype))
        behind.append(torch.add(primal.to(wide), tangent.to(wide), alpha=-step).to(primal.dtype))
    plus, minus = (
        vjp(
            point[0], point[1], point[2], g, scale=scale, causal=causal, precision=precision, blocks=blocks, needs=needs
        )
        for point in (ahead, behind)
    )
    hq, hk, hv = (
        None if a is None or b is None else ((a.to(wide) - b.to(wide)) / (2 * step)).to(a.dtype)
        for a, b in zip(plus, minus, strict=True)
    )
    return hq, hk, hv
