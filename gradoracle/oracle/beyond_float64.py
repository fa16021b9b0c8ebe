"""Beyond float64: the truth of a graph whose values leave the range of float64 on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradoracle.oracle.exact.cost import TooLarge
from gradoracle.oracle.exact.enclosure import Enclosure
from gradoracle.oracle.exact.float64 import Range
from gradoracle.oracle.exact.trace import Graph, UnsupportedOperator
from gradoracle.oracle.rounding import reading
from gradoracle.oracle.rounding.overflow import FAR
from gradoracle.oracle.rounding.reading import Budget

_NOTHING = 1e-300  # an error that no dtype shows


class Unread(Exception):
    """No reading gives this truth here; the message says why in one sentence."""


def leaves(within: Range) -> str:
    """That a definition leaves float64, and where."""
    return f"the definition leaves the range of float64 ({within.left})"


def read(
    graph: Graph, args: Sequence[Tensor], budgets: Sequence[Budget], within: Range, operations: int, share: float
) -> tuple[list[Enclosure], list[Tensor]]:
    """The certified truth of each output, and where it counts as unknown, as there is no budget.

    A budget is computed in float64: it is lost where it depends on a number beyond, or its own value is not the truth.

    Args:
        graph, args: of the reading.
        budgets: of the outputs.
        within: where they leave float64.
        operations: on single numbers, at most.
        share: the truth's own error against sigma.

    Raises:
        Unread: it cannot be certified, or no budget is left.
    """
    from gradoracle.oracle.exact import certified

    if missing := certified.unavailable():
        raise Unread(f"{leaves(within)}; {missing}")

    def widest(balls: Sequence[Enclosure]) -> list[Tensor]:
        known = zip(balls, budgets, strict=True)
        return [torch.where(_is_of(b, ball), (b.sigma * share).clamp_min(_NOTHING), inf) for ball, b in known]

    inf = torch.tensor(math.inf, dtype=torch.float64)
    try:
        balls = certified.certify(graph, args, widest, operations=operations)
    except (TooLarge, UnsupportedOperator) as error:
        raise Unread(f"{leaves(within)}, and {error}") from None
    lost = reading.tainted(graph, args, {node: [(None, made)] for node, made in within.made.items()})
    unknown = [
        ball.undecided | ~_is_of(budget, ball) | (False if mask is None else mask)
        for ball, budget, mask in zip(balls, budgets, lost, strict=True)
    ]
    if all(bool(each.all()) for each in unknown):
        raise Unread(f"{leaves(within)}, and so does every budget")
    return balls, unknown


def _is_of(budget: Budget, ball: Enclosure) -> Tensor:
    """Where a budget is that of the truth: its own value, in float64, is no further from it than rounding explains."""
    same = (budget.value == ball.high) | (budget.value.isnan() & ball.high.isnan() & (ball.radius == 0))
    return same | ((budget.value - ball.high).abs() <= FAR * budget.sigma + _NOTHING)
