"""Accuracy: whether errors in sigma have grown, case by case.

Accuracy fell if the median of log2(rms of the change / rms of the base) over cases exceeds 0.1 and Wilcoxon's
signed-rank test gives p < 1e-6: with random signs, a sum of ranks as large would occur less than once in a million
times, whatever the distribution of the errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

MEDIAN, P = 0.1, 1e-6
FEWEST = math.ceil(-math.log2(P))  # pairs; with fewer, no outcome of the test is below P
_NORMAL_FROM = 200  # pairs from which the sum of ranks is taken as normal, whose tail is longer; exact: n^3 steps


@dataclass(frozen=True)
class Change:
    """Comparison of pairs of errors.

    Attributes:
        pairs: how many differ.
        median: of log2(head / base) over all pairs, equal ones included.
        p: of the one-sided test that the head's are larger.
    """

    pairs: int
    median: float
    p: float

    @property
    def is_worse(self) -> bool:
        """Whether accuracy fell."""
        return self.median > MEDIAN and self.p < P


def change(base: Sequence[float], head: Sequence[float]) -> Change:
    """Compare errors on the same cases.

    Args:
        base: rms of the errors in sigma, one a case; at least 0, inf where values are lost.
        head: those of the change, in the same order.
    """
    logs = [_log_ratio(b, h) for b, h in zip(base, head, strict=True)]
    differences = [log for log in logs if log != 0.0]
    return Change(len(differences), median(logs) if logs else 0.0, sign_flip(differences))


def _log_ratio(base: float, head: float) -> float:
    if base == head:
        return 0.0
    if base == 0.0 or math.isinf(head):
        return math.inf
    return -math.inf if head == 0.0 or math.isinf(base) else math.log2(head / base)


def sign_flip(differences: Sequence[float]) -> float:
    """The probability that the ranks of the positive differences have at least this sum if signs are random.

    Args:
        differences: none is 0; equal sizes share their mean rank.
    """
    sizes = sorted((abs(each), each > 0) for each in differences)
    count, doubled, place = len(sizes), [], 0
    while place < count:
        end = place
        while end < count and sizes[end][0] == sizes[place][0]:
            end += 1
        doubled += [place + 1 + end] * (end - place)  # twice the mean rank
        place = end
    reached = sum(rank for rank, (_, positive) in zip(doubled, sizes, strict=True) if positive)
    if count >= _NORMAL_FROM:
        spread = math.sqrt(sum(rank * rank for rank in doubled)) / 2
        return 0.5 * math.erfc((reached - sum(doubled) / 2) / (spread * math.sqrt(2.0)))
    return _tail(doubled, reached)


def _tail(ranks: Sequence[int], reached: int) -> float:
    """The fraction of all subsets of the ranks that have at least this sum; exact, counted in integers."""
    ways = [0] * (sum(ranks) + 1)
    ways[0], top = 1, 0
    for rank in ranks:
        top += rank
        for total in range(top, rank - 1, -1):
            ways[total] += ways[total - rank]
    return float(sum(ways[reached:]) / (1 << len(ranks)))
