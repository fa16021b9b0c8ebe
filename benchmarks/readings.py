"""How long the exact readings of SDPA take at 2x33x65x32 (batch, queries, keys, head dim).

`python benchmarks/readings.py`
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradoracle.model.derivative import Derivative, program
from gradoracle.oracle.exact import certified, float64, multiprecision
from gradoracle.oracle.exact.cost import cost
from gradoracle.oracle.exact.trace import trace


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def timed(function: Callable[[], Any], runs: int) -> tuple[float, Any]:
    """The shortest of some runs, in seconds, and the result of the last."""
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        result = function()
        best = min(best, time.perf_counter() - start)
    return best, result


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v, g, tq, tk, tv = (
        torch.randn(2, n, 32, dtype=torch.float64, generator=generator) for n in (33, 65, 65, 33, 33, 65, 65)
    )
    arguments = {
        Derivative.FORWARD: (q, k, v),
        Derivative.VJP: (q, k, v, g),
        Derivative.JVP: (q, k, v, tq, tk, tv),
        Derivative.HVP: (q, k, v, tq, tk, tv, g),
    }
    print("derivative  trace s  float64 s  certified s  mpmath s  operations  widest radius")
    for derivative, args in arguments.items():
        traced, graph = timed(lambda d=derivative, a=args: trace(program(sdpa, d, 3), *a), 3)
        plain, _ = timed(lambda graph=graph, a=args: float64.read(graph, a), 3)
        balls, found = timed(lambda graph=graph, a=args: certified.read(graph, a), 3)
        slow, _ = timed(lambda graph=graph, a=args: multiprecision.read(graph, a), 1)
        radius = max(ball.radius.max().item() for ball in found)
        print(
            f"{derivative.value:10}  {traced:7.3f}  {plain:9.4f}  {balls:11.3f}  {slow:8.2f}  "
            f"{cost(graph):10}  {radius:13.0e}"
        )


if __name__ == "__main__":
    main()
