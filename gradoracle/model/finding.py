"""Finding: what one check of one tensor saw. The atom of every verdict and report; plain data, no tensors."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from enum import Enum

from gradoracle.model.error_map import ErrorMap
from gradoracle.model.reason import Reason
from gradoracle.model.serialize import NOT_WRITTEN


class Outcome(str, Enum):
    """Of one tensor: within its budget, wrong, or not checked (never green)."""

    HOLDS = "holds"
    VIOLATED = "violated"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Worst:
    """The element that is furthest out: where, what the kernel gave, what is true."""

    index: tuple[int, ...]
    got: float
    true: float
    error_in_sigma: float


@dataclass(frozen=True)
class Pool:
    """What the pooled rules need from one tensor: sums that add up over the cases of a dtype.

    ``squares`` is the sum of (e / sigma)^2 over ``count`` elements and ``null_squares`` what the probes show for it
    (one number a probe); ``slope_top / slope_bottom`` is the bias slope, ``null_slope_tops`` the probes' tops.
    ``shared`` is the sum of squared correlations over all pairs of elements: ``count`` where errors are independent,
    its square where all are one rounding.
    """

    count: int
    squares: float
    null_squares: tuple[float, ...]
    slope_top: float
    slope_bottom: float
    null_slope_tops: tuple[float, ...]
    shared: float = 0.0

    def __add__(self, other: Pool) -> Pool:
        """Both tensors together, by the probes that both have."""
        return Pool(
            self.count + other.count,
            self.squares + other.squares,
            _sums(self.null_squares, other.null_squares),
            self.slope_top + other.slope_top,
            self.slope_bottom + other.slope_bottom,
            _sums(self.null_slope_tops, other.null_slope_tops),
            max(self.shared, self.count) + max(other.shared, other.count),
        )


def _sums(these: tuple[float, ...], those: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(map(operator.add, these, those))


@dataclass(frozen=True)
class Finding:
    """One tensor judged by one rule.

    Attributes:
        tensor: its name in the law, such as ``dq`` or ``<g, Jt> - <J^T g, t>``.
        outcome: holds, violated or not checked.
        rule: which rule decided: local, worst case, bias, pooled, exact.
        error: the largest ``|kernel - truth|`` against its budget (ratio; 1 is the boundary); inf for exact facts.
        error_in_sigma: the same in sigma (0 where no sigma applies).
        sensitivity: median budget / |truth|; None for exact facts.
        message: one sentence; for ``not checked`` the reason.
        worst: the worst element, where there is one.
        pattern: where the wrong elements lie and how they are wrong, in words ("only T >= 64 (of 65); NaN"); "" where
            nothing stands out.
        place: the part of ``pattern`` that says where they lie.
        cause: what the values point at, a name of ``causes.CAUSES``; "" where they point at nothing.
        ratio: of the wrong values to the true ones, where it is one and the same.
        among: of a law among several tensors, their names; empty for one tensor alone.
        lost: whether values are lost, NaN or infinite where the truth is finite, and not merely wrong.
        gives_away: how many times the definition's budget the error takes, where only another algorithm's explains it.
        why: of one that was not checked, of what kind the reason is; None where the property alone knows.
        malformed: whether what the kernel gave is no tensor of the right shape and dtype: there is nothing to judge.
        elements: how many elements were compared; undecided ones are not in it but in ``undecided``.
        map: of a wrong tensor with dims, how far out each part of it is.
        steps: of differences, (step, largest error) of each, smallest step first.
        pool: for rules that pool over cases; dropped from reports.
    """

    tensor: str
    outcome: Outcome
    rule: str
    error: float = 0.0
    error_in_sigma: float = 0.0
    sensitivity: float | None = None
    message: str = ""
    worst: Worst | None = None
    pattern: str = ""
    elements: int = 0
    undecided: int = 0
    place: str = ""
    among: tuple[str, ...] = ()
    lost: bool = False
    malformed: bool = False
    gives_away: float = 0.0
    why: Reason | None = None
    cause: str = ""
    ratio: float | None = None
    map: ErrorMap | None = field(default=None, compare=False)
    steps: tuple[tuple[float, float], ...] = ()
    pool: Pool | None = field(default=None, compare=False, metadata=NOT_WRITTEN)


@dataclass(frozen=True)
class Likeness:
    """What was found: in words, the cause it points at (a name of ``causes.CAUSES`` or ""), and the ratio if one."""

    words: str = ""
    cause: str = ""
    ratio: float | None = None


NO_LIKENESS = Likeness()
