"""Severity: what a violation says about a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Severity(str, Enum):
    """Of a violation, the gravest first.

    WRONG: a formula, mask or index is wrong: the violation stays with every float in float64, or it is a fact that no
        rounding explains (a missing gradient, NaN where the truth is finite, a race, a crash).
    PRECISION: the violation goes away with every float in float64.
    ROBUSTNESS: an invalid argument is accepted, a refusal does not say what is expected, or a derivative that the
        kernel does not claim is not what it should be, and nothing raises.
    UNDECIDED: wrong or precision, since the kernel could not be judged with every float in float64.
    """

    WRONG = "wrong"
    PRECISION = "precision"
    ROBUSTNESS = "robustness"
    UNDECIDED = "undecided"

    @property
    def rank(self) -> int:
        """Its place in the order; 0 is the gravest."""
        return list(Severity).index(self)


def gravest(several: Iterable[Severity | None]) -> Severity | None:
    """The gravest of several, undecided only where none is decided; None where there is none."""
    return min((each for each in several if each is not None), key=lambda each: each.rank, default=None)
