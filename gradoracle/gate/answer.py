"""Answer: what one side of a gate found out about one target: the ledger of its cases, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gradoracle.check.fold import report_of
from gradoracle.model.fault import VerdictKey
from gradoracle.model.finding import Outcome
from gradoracle.model.job import PropertyResult
from gradoracle.model.ledger import CaseRecord, JudgeRecord, Ledger, Piece
from gradoracle.model.property import PropertyKind
from gradoracle.model.verdict import Report, Status

UNDECIDED = (Status.REFUSED, Status.NOT_CHECKED, Status.ERROR)


@dataclass
class Answer:
    """One target, such as a kernel of the project's configuration, in one tree.

    Attributes:
        target: as ``gradoracle check`` takes it, relative to the project's folder.
        ledger: of the cases that were judged; None: there are none.
        judge: what judges it, and with which settings.
        error: why none of the above is known, one sentence.
        is_fault: whether the error is a bug of gradoracle.
        is_lost: whether the error says nothing about the kernel, as when the system killed the process.
    """

    target: str
    ledger: Ledger | None = None
    judge: JudgeRecord = field(default_factory=JudgeRecord)
    error: str = ""
    is_fault: bool = False
    is_lost: bool = False

    @cached_property
    def cases(self) -> Mapping[str, CaseRecord]:
        """The cases, by name."""
        return {} if self.ledger is None else self.ledger.cases

    @property
    def pieces(self) -> Mapping[str, Piece]:
        """What judges it, by name."""
        return self.judge.pieces

    @property
    def measured(self) -> Sequence[str]:
        """The properties that measure errors in sigma on every case."""
        known = {} if self.ledger is None else self.ledger.header.properties
        return [name for name, prop in known.items() if prop.kind is PropertyKind.ORACLE]

    @property
    def missing(self) -> Sequence[str]:
        """The kernels and block configurations that the judge has and the target's own project lacks."""
        return () if self.ledger is None else self.ledger.header.missing

    @property
    def is_whole(self) -> bool:
        """Whether every planned case was judged."""
        if self.ledger is None:
            return False
        return self.ledger.is_whole and not any(part.interrupted for part in self.ledger.parts.values())

    @cached_property
    def report(self) -> Report | None:
        """The report of its cases; None: there are none."""
        return None if self.ledger is None else report_of(self.ledger, compared=True)

    @property
    def pooled(self) -> Sequence[VerdictKey]:
        """The verdicts that only all cases together violate."""
        known = [] if self.report is None else self.report.verdicts
        return [each.key for each in known if each.status is Status.VIOLATED and not each.cases_violated]

    def __or__(self, other: Answer) -> Answer:
        """What two processes found of this target, on any cases and by any properties."""
        assert self.ledger is not None and other.ledger is not None
        return replace(self, ledger=self.ledger | other.ledger)


def rms(result: PropertyResult) -> dict[str, float]:
    """The root mean square of the errors in sigma, by tensor, where a property compares with the truth."""
    pools = {each.tensor: each.pool for each in result.findings if each.pool is not None and each.pool.count}
    return {tensor: (pool.squares / pool.count) ** 0.5 for tensor, pool in pools.items()}


def worst(result: PropertyResult) -> dict[str, float]:
    """The largest error, in sigma or else in budgets, by tensor, where one is violated and pools nothing."""
    violated = (each for each in result.findings if each.outcome is Outcome.VIOLATED)
    return {each.tensor: each.error_in_sigma or each.error for each in violated if not each.pool or not each.pool.count}
