"""The budget of a function's one output, and how a result is judged by it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradoracle.check.acceptance import Allowance, judge
from gradoracle.model.contract import PRESETS
from gradoracle.model.finding import Outcome
from gradoracle.oracle.exact.trace import trace
from gradoracle.oracle.rounding.reading import Budget, budgets


def random(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers of float32, as float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float().double()


def budget_of(function: Callable[..., Tensor], *args: Tensor, preset: str = "ieee32", **options: object) -> Budget:
    """The budget of a forward function's one output under a preset; ``options`` are those of ``budgets``."""
    graph = trace(lambda *x: (function(*x),), *args)
    return budgets(graph, args, PRESETS[preset], **options)[0]  # type: ignore[arg-type]


def outcome(got: Tensor, budget: Budget, floor: Tensor | None = None) -> tuple[Outcome, str]:
    """What a continuous result is judged to be, and the rule that decided it."""
    allowed = Allowance(budget.sigma, budget.errors, budget.worst, floor=floor)
    found = judge("y", got, budget.value, allowed, continuous=True)
    return found.outcome, found.rule
