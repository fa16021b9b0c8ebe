"""Where precision is lost: a kernel that holds when widened is made to round at some of its statements only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradoracle.check.evidence import Evidence
from gradoracle.check.widened import OutOfBudget, WidenedRuns
from gradoracle.model.call import Intervention, Kind
from gradoracle.model.call_errors import Crashed, Refused, Unavailable, Wrong
from gradoracle.model.derivative import Derivative
from gradoracle.model.explanation import PrecisionLoss, Statement
from gradoracle.model.finding import Outcome
from gradoracle.model.wrong_accesses import SourceLine

Places = tuple[SourceLine, ...]


def lost_at(
    evidence: Evidence,
    derivative: Derivative,
    names: Sequence[str],
    *,
    calls: int | None = None,
    seconds: float | None = None,
) -> PrecisionLoss | None:
    """The statement that brings the error of some tensors back.

    Halves of the statements round in turn, and those halves of them that break the contract, down to single statements.

    Args:
        evidence: evidence of a case on which the tensors break the contract as written and hold when widened.
        derivative: the derivative that the tensors belong to.
        names: the names of the tensors.
        calls: the most calls of the kernel; None: any number.
        seconds: the most seconds that may pass; None: any number.

    Returns:
        The statement that alone breaks the contract, of several the one with the largest error and of equal ones the
        first to run. If none does alone, of the fewest found that do together the one without which least error is
        left, given that the others hold without it. None: the statements do not explain the error, the kernel cannot
        be widened, or no call or time is left.
    """
    return _Search(evidence, derivative, names, calls, seconds).run()


class _Search:
    """The measurements on one case."""

    def __init__(
        self, evidence: Evidence, derivative: Derivative, names: Sequence[str], calls: int | None, seconds: float | None
    ) -> None:
        self._evidence, self._derivative, self._names = evidence, derivative, frozenset(names)
        self._runs = WidenedRuns(evidence, derivative, calls, seconds)
        self._alone: dict[SourceLine, float] = {}
        self._fewest: Places = ()
        self._errors: dict[Places, float] = {}

    def run(self) -> PrecisionLoss | None:
        try:
            _, facts = self._runs.tensors(Intervention(Kind.NOTE))
            self._descend(facts.statements)
            return self._chosen(facts.statements) or self._together()
        except OutOfBudget:
            return self._chosen(tuple(self._alone))
        except (Unavailable, Refused, Crashed, Wrong):
            return None

    def _descend(self, places: Places) -> None:
        """Find the single statements that break the contract among some, and the fewest that do together."""
        error = self._error(places)
        if not places or error <= 1:
            return
        if not self._fewest or len(places) < len(self._fewest):
            self._fewest = places
        if len(places) == 1:
            self._alone[places[0]] = error
            return
        middle = len(places) // 2
        self._descend(places[:middle])
        self._descend(places[middle:])

    def _chosen(self, order: Places) -> PrecisionLoss | None:
        """What the single statements say."""
        found = [_statement(place, self._alone[place]) for place in order if place in self._alone]
        return _loss(sorted(found, key=lambda each: -each.error))

    def _together(self) -> PrecisionLoss | None:
        """The statements of the smallest set without which the rest of it holds."""
        left = [(place, self._error(tuple(p for p in self._fewest if p != place))) for place in self._fewest]
        needed = [_statement(place, error) for place, error in left if error <= 1]
        found = _loss(sorted(needed, key=lambda each: each.error))
        return None if found is None else replace(found, together=True)

    def _error(self, places: Places) -> float:
        """The largest error / budget of the tensors with some statements rounding; above 1 where one is violated."""
        if places not in self._errors:
            found = self._evidence.compare(self._derivative, self._runs.tensors(Intervention(Kind.NARROW, places))[0])
            own = [each for each in found if each.tensor in self._names]
            self._errors[places] = max(
                (each.error for each in own if each.outcome is Outcome.VIOLATED),
                default=max((min(each.error, 1.0) for each in own), default=0.0),
            )
        return self._errors[places]


def _statement(place: SourceLine, error: float) -> Statement:
    return Statement(place.file, place.line, place.function, error)


def _loss(found: Sequence[Statement]) -> PrecisionLoss | None:
    return PrecisionLoss(found[0], found[0].source, tuple(found[1:])) if found else None
