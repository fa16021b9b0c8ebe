"""Chance: how probable a count is that no more than random numbers decide, and from where on it is a fault."""

from __future__ import annotations

import math
from collections.abc import Callable

LEAST = 1e-9
"""A count is a fault where one at least as far out has a smaller probability."""


def binomial(count: int, trials: int, probability: float) -> float:
    """The probability that trials succeed as often, or are as far out on the same side, on either side; at most 1.

    Exact up to rounding: the tail is summed from ``count`` outwards.
    """
    if probability in (0.0, 1.0):
        return 1.0 if count == trials * probability else 0.0
    upper = count > trials * probability
    own = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
    own += count * math.log(probability) + (trials - count) * math.log1p(-probability)
    odds = probability / (1 - probability)
    term, total, at = 1.0, 1.0, count
    while term > 1e-17 * total and 0 <= at <= trials:
        term *= (trials - at) / (at + 1) * odds if upper else at / (trials - at + 1) / odds
        total += term
        at += 1 if upper else -1
    return min(2.0 * math.exp(min(own, 0.0)) * total, 1.0)


def mixed_binomial(count: float, trials: int, mean: float) -> float:
    """The same for trials of different probabilities with this mean, at most (Chernoff's bound)."""
    share = count / trials
    exponent = 0.0
    for found, expected in ((share, mean), (1 - share, 1 - mean)):
        if found > 0:
            exponent += found * math.log(found / expected) if expected > 0 else math.inf
    return min(2.0 * math.exp(-trials * max(exponent, 0.0)), 1.0)


def weighted(total: float, squares: float) -> float:
    """The probability of a sum that far from its mean, at most (Hoeffding's bound).

    Args:
        total: the distance from the mean.
        squares: the sum of the squares of the ranges of all terms.
    """
    return min(2.0 * math.exp(-2.0 * total * total / squares), 1.0) if squares > 0 else float(total == 0)


def within(probability: float, levels: int, found: float) -> float:
    """The probability closest to a share that was found, if it may be off by one of so many levels."""
    low, high = max(probability - 1 / levels, 0.0), min(probability + 1 / levels, 1.0)
    return min(max(found, low), high)


def decides(tail: Callable[[int], float], trials: int) -> bool:
    """Whether some count of so many trials would be a fault: with too few of them, none is improbable."""
    return min(tail(0), tail(trials)) < LEAST
