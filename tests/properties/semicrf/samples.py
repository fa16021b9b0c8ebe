"""Samples of the semi-CRF and comparisons of its oracles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gradoracle.properties.semicrf import FAMILY as semicrf
from mpmath import mpf
from torch import Tensor

from gradoracle.cases.sample import Sample, build
from gradoracle.model.case import parse
from gradoracle.model.derivative import Derivative

WORDS = {
    "transition": "transition~normal",
    "by duration": "transition_by_duration~normal",
    "projections": "transition~normal proj_start~normal proj_end~normal",
    "all by duration": "transition_by_duration~normal:2 proj_start~normal proj_end~normal:2",
    "forbidden": "transition~forbidden:0.4 duration_bias~forbidden:0.3 proj_start~forbidden:0.2 proj_end~forbidden:0.2",
    "forbidden by duration": "transition_by_duration~forbidden:0.4 duration_bias~forbidden:0.2",
    "every path forbidden": "transition~normal duration_bias~forbidden:1",
    "no positions": "transition~normal lengths~lowest",
    "full lengths": "transition~normal lengths~highest",
}


def sample(words: str, sizes: str = "B=2 T=6 C=2 K=3", seed: int = 1) -> Sample:
    _, _, case = parse(f"case:1 semicrf cpu float32 {sizes} {WORDS.get(words, words)} seed={seed}")
    return build(case, semicrf.signature, domains=semicrf.domains)


def random_walk(
    sizes: Mapping[str, int],
    *,
    by_duration: bool = False,
    projections: bool = False,
    seed: int = 0,
    lengths: list[int] | None = None,
    scale: float = 1.0,
    drift: float = 0.0,
) -> dict[str, Tensor]:
    """Inputs whose cum_scores are a sum of normal numbers, as those of a model are; float32."""
    b, t, c, k = (sizes[name] for name in ("B", "T", "C", "K"))
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    steps = scale * normal(b, t, c) + drift
    found = {"cum_scores": torch.cat([torch.zeros(b, 1, c, dtype=torch.float64), steps.cumsum(1)], 1)}
    table = {"transition_by_duration": normal(k, c, c)} if by_duration else {"transition": normal(c, c)}
    found |= table | {"duration_bias": normal(k, c)}
    found["lengths"] = torch.tensor(lengths or [t] * b)
    if projections:
        found |= {"proj_start": normal(b, t, c), "proj_end": normal(b, t, c)}
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in found.items()}


def defined(own: Sample, derivative: Derivative, reading: str = "float64", **changed: Tensor) -> dict[str, Any]:
    """The tensors of a derivative by name: of the definition, in float64 or in balls."""
    from gradoracle.oracle.exact import certified, float64
    from gradoracle.oracle.truth import Oracle, arguments

    own = own.with_inputs(**changed) if changed else own
    oracle = Oracle(semicrf, reading)
    graph, args = oracle.graph(own, derivative), arguments(semicrf, own, derivative)
    keys = oracle.outputs(own, derivative)
    values = float64.read(graph, args)
    if reading == "float64":
        return dict(zip(keys, values, strict=True))
    narrow = [torch.full_like(value, 1e-30) for value in values]
    return dict(zip(keys, certified.certify(graph, args, narrow, operations=10**8), strict=True))


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference; equal infinities differ by 0, anything else that is not finite by inf."""
    gap = torch.where(one == other, 0.0, (one - other).abs()).nan_to_num(nan=float("inf"))
    return float(gap.max()) if gap.numel() else 0.0


def as_mpf(ball: Any) -> Any:
    """[shape] of mpf from the leading and trailing part of an expansion."""
    high, low = ball.high.reshape(-1).tolist(), ball.low.reshape(-1).tolist()
    found = np.empty(len(high), dtype=object)
    found[:] = [mpf(h) + (mpf(l) if np.isfinite(h) else 0) for h, l in zip(high, low, strict=True)]
    return found.reshape(tuple(ball.high.shape))
