"""Tally: the results of a run by verdict, in the order of the stream, whatever the order in which they come."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from gradoracle.check.spread import pooled
from gradoracle.model.contract import weakest
from gradoracle.model.fault import VerdictKey
from gradoracle.model.finding import Finding, Outcome, Pool, malformed
from gradoracle.model.job import CaseResult, Job, PropertyResult
from gradoracle.model.ledger import CaseRecord, LedgerProperty, SeverityRecord
from gradoracle.model.property import PropertyKind
from gradoracle.model.reason import Reason
from gradoracle.model.severity import Severity, gravest
from gradoracle.model.verdict import BROKEN, FAILING, Counterexample, Status, Verdict
from gradoracle.model.wording import counted

TELLING = 8  # violating cases that a verdict shows
_MOST_WRONG = 1 << 18  # elements of a violating case that is shown


@dataclass(frozen=True)
class Judged:
    """A case and what one property found on it."""

    record: CaseRecord
    result: PropertyResult

    @property
    def place(self) -> int:
        """Of the case, in the stream."""
        return self.record.place

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """The findings that are violated."""
        return tuple(each for each in self.result.findings if each.outcome is Outcome.VIOLATED)


class Results:
    """The results of one property on one kernel and dtype, in stream order.

    Attributes:
        key: of the verdict.
        statuses: cases, by status.
        settled: the severity that triage found.
    """

    def __init__(self, key: VerdictKey) -> None:
        self.key = key
        self.statuses: Counter[Status] = Counter()
        self.settled: SeverityRecord | None = None
        self._judged: list[Judged] = []

    def add(self, judged: Judged) -> None:
        """Add a result."""
        insort(self._judged, judged, key=lambda each: each.place)
        self.statuses[judged.result.status] += 1

    def of(self, *statuses: Status) -> list[Judged]:
        """Those with one of these statuses."""
        if not any(self.statuses[status] for status in statuses):
            return []
        return [each for each in self._judged if each.result.status in statuses]

    @property
    def reasons(self) -> Counter[str]:
        """Cases that were refused or not checked, by reason."""
        return Counter(each.result.reason for each in self.of(Status.REFUSED, Status.NOT_CHECKED))

    @property
    def kinds(self) -> dict[str, Reason]:
        """The kind of each of ``reasons`` that has one."""
        left = self.of(Status.REFUSED, Status.NOT_CHECKED)
        return {each.result.reason: each.result.why for each in left if each.result.why is not None}

    @property
    def decided(self) -> Counter[str]:
        """The number of cases on which a tensor was decided, by tensor."""
        return Counter(each.tensor for each in self._findings(is_decided=True))

    @property
    def left(self) -> dict[str, str]:
        """Why a tensor was not decided on the first case on which it was not, by tensor; but for random ones."""
        found: dict[str, str] = {}
        for each in self._findings(is_decided=False):
            if each.why is not Reason.RANDOM:
                found.setdefault(each.tensor, each.message)
        return found

    @property
    def undecided(self) -> dict[str, str]:
        """The tensors that no case decided, each with the reason; none where the property is violated."""
        if self.statuses[Status.VIOLATED]:
            return {}
        decided = self.decided
        return {tensor: reason for tensor, reason in self.left.items() if not decided[tensor]}

    @property
    def detached(self) -> list[Judged]:
        """The cases whose outputs do not require grad."""
        return [each for each in self.of(Status.REFUSED, Status.NOT_CHECKED) if each.result.why is Reason.DETACHED]

    @property
    def telling(self) -> list[Judged]:
        """The violating cases with the most wrong elements, largest first."""
        sizes = [(sum(f.elements for f in each.wrong), each) for each in self.of(Status.VIOLATED)]
        kept = [(-size, each.place, each) for size, each in sizes if size <= _MOST_WRONG]
        return [each for *_, each in sorted(kept, key=lambda one: one[:2])[:TELLING]]

    @property
    def asked(self) -> list[PropertyResult]:
        """The violations whose severity is known; once one is wrong, no other is graver."""
        known = [each.result for each in self.of(Status.VIOLATED) if each.result.severity is not None]
        return [each for each in known if each.severity is Severity.WRONG][:1] or known

    @property
    def severities(self) -> list[Severity]:
        """Those of ``asked``, or the one that triage gave to all."""
        known = [each.severity for each in self.asked if each.severity is not None]
        return [self.settled.severity] if self.settled is not None and known else known

    @property
    def is_undecided(self) -> bool:
        """Whether the severity of every violation that was asked for is undecided."""
        return {each.severity for each in self.asked} == {Severity.UNDECIDED}

    @property
    def status(self) -> Status:
        """The worst informative status; refused and not checked only where no case held."""
        order = (*FAILING, Status.HOLDS, Status.REFUSED)
        return next((status for status in order if self.statuses[status]), Status.NOT_CHECKED)

    def first(self, status: Status) -> Judged | None:
        """The first case with a status, of violations the first of the gravest."""
        return min(self.of(status), key=lambda each: (_rank(each.result), each.place), default=None)

    def verdict(
        self,
        like: LedgerProperty,
        counterexample: Counterexample | None = None,
        line: Callable[[CaseRecord], str] = lambda record: record.case,
    ) -> Verdict:
        """The verdict of these results.

        Args:
            like: what is known of its property.
            counterexample: where a case fails.
            line: writes a case as a line.
        """
        sizes = self.statuses
        first = next(iter(self.reasons), None)
        verdict = Verdict(
            self.key.property_name,
            self.key.kernel,
            self.key.dtype,
            self.status,
            cases_held=sizes[Status.HOLDS],
            cases_violated=sizes[Status.VIOLATED],
            cases_crashed=sizes[Status.CRASHED],
            cases_error=sizes[Status.ERROR],
            cases_refused=sizes[Status.REFUSED],
            cases_not_checked=sizes[Status.NOT_CHECKED],
            reasons=dict(self.reasons),
            counterexample=counterexample,
            notes=[*self._notes(), *self._formulas()],
            tensors_compared=self.decided.total(),
            why=None if first is None else self.kinds.get(first),
            statement=like.statement,
            rank=like.rank,
            kind=like.kind,
            cause=like.cause,
            derivative=like.derivative,
        )
        self._measure(verdict)
        self._settle(verdict)
        if not sizes:
            verdict.reasons = {"it applies to no case of this run": 0}
        if verdict.status is Status.HOLDS:
            self._pool(verdict, line)
        if like.decisive and verdict.status is Status.HOLDS and self.detached:
            self._detach(verdict, line)
        if like.decisive:
            verdict.undecided = self.undecided
        if like.kind is PropertyKind.ARGUMENTS and verdict.status is Status.CRASHED:
            verdict.severity = Severity.ROBUSTNESS  # what was passed is wrong
        return verdict

    def _findings(self, *, is_decided: bool) -> Iterator[Finding]:
        every = (finding for each in self._judged for finding in each.result.findings)
        yield from (each for each in every if (each.outcome is not Outcome.NOT_CHECKED) is is_decided)

    def _measure(self, verdict: Verdict) -> None:
        """Set the largest errors, and the sensitivity."""
        decided = list(self._findings(is_decided=True))
        finite = [each for each in decided if each.error < math.inf]
        verdict.worst_error = max((each.error for each in finite), default=0.0)
        verdict.worst_in_sigma = max((each.error_in_sigma for each in finite), default=0.0)
        known = [each.sensitivity for each in decided if each.sensitivity is not None]
        verdict.sensitivity = median(known) if known else None

    def _settle(self, verdict: Verdict) -> None:
        """Set the severity, why it is undecided, and the preset that is kept."""
        severities, shown = self.severities, verdict.counterexample
        crashed = Severity.WRONG if self.statuses[Status.CRASHED] else None
        known = crashed or gravest(severities)
        verdict.severity = known or (None if shown is None else shown.severity)
        verdict.keeps = self._keeps(severities, shown)
        unknown = self._unknown()
        note = "" if shown is None else shown.undecided
        if verdict.severity is Severity.UNDECIDED:
            verdict.severity_note = next(iter(unknown), note)
        elif verdict.severity is Severity.WRONG:
            verdict.severity_note = note
        elif unknown:
            count = counted(unknown.total(), "violating case")
            verdict.notes.append(f"wrong or lost precision on {count}: {next(iter(unknown))}")

    def _unknown(self) -> Counter[str]:
        """Violating cases, by the reason why their severity is not known."""
        if self.settled is not None and self.asked:
            return Counter({self.settled.undecided: len(self.asked)} if self.settled.undecided else {})
        if Severity.WRONG in self.severities:
            return Counter()
        return Counter(each.undecided for each in self.asked if each.undecided)

    def _keeps(self, severities: Sequence[Severity], shown: Counterexample | None) -> str:
        """The preset that explains every violating case; where severities were not asked for, the one that is shown."""
        if not severities:
            return "" if shown is None else shown.preset
        explained = (Severity.PRECISION, Severity.UNDECIDED)
        presets = [each.preset for each in self.asked if each.severity in explained]
        return "" if Severity.WRONG in severities else weakest(dict.fromkeys(presets))

    def _notes(self) -> list[str]:
        """Notes of findings where the property holds, and the number of cases that have them."""
        notes: Counter[str] = Counter()
        for each in self._judged:
            findings = each.result.findings
            if each.result.status is Status.HOLDS:  # where nothing was decided, the reason says it
                notes.update(list(dict.fromkeys(note for finding in findings for note in finding.notes)))
            notes.update(
                "less accurate than 'definition': " + finding.tensor
                for finding in findings
                if finding.gives_away and finding.outcome is Outcome.HOLDS
            )
        return [f"{note} on {count} cases" for note, count in notes.items()]

    def _formulas(self) -> list[str]:
        """A note on formulas that are off by less than the dtype shows."""
        off: dict[str, float] = {}
        for each in self._findings(is_decided=True):
            if each.off:
                off[each.tensor] = max(off.get(each.tensor, 0.0), each.off)
        tensors = [f"{name} by {size:.2g}" for name, size in sorted(off.items())]
        note = "the formula is off by less than float32 shows, relative to the value"
        return [f"{note}: {', '.join(tensors)}"] if tensors else []

    def _pool(self, verdict: Verdict, line: Callable[[CaseRecord], str]) -> None:
        """Violate a verdict whose cases are only together beyond what rounding explains."""
        pools: dict[str, Pool] = {}
        count = 0
        for each in self._findings(is_decided=True):
            if each.pool is not None:
                pools[each.tensor] = pools[each.tensor] + each.pool if each.tensor in pools else each.pool
                count += 1
        broken = [each for each in pooled(pools) if each.outcome is Outcome.VIOLATED]
        if broken:
            verdict.status = Status.VIOLATED
            verdict.worst_error = max(each.error for each in broken)
            message = f"over {count} tensors of all {self.key.dtype} cases together, each within its own budget"
            (first, *_) = self.of(Status.HOLDS)
            verdict.counterexample = Counterexample(line(first.record), tuple(broken), message=message, pooled=True)

    def _detach(self, verdict: Verdict, line: Callable[[CaseRecord], str]) -> None:
        """Violate a verdict where some cases have a gradient, and others silently have none."""
        (first, *_) = own = self.detached
        message = f"{first.result.reason}, as it does on other cases"
        found = replace(malformed("gradient", message), derivative=verdict.derivative)
        verdict.status, verdict.severity = Status.VIOLATED, Severity.WRONG
        verdict.cases_violated, verdict.worst_error = len(own), math.inf
        case = line(first.record)
        verdict.counterexample = Counterexample(case, (found,), message=message, severity=Severity.WRONG)


class Tally:
    """The results of a run, by verdict.

    Attributes:
        verdicts: the results of each, those that are owed first.
    """

    def __init__(self, owed: Iterable[VerdictKey] = ()) -> None:
        self.verdicts: dict[VerdictKey, Results] = {key: Results(key) for key in owed}

    def add(self, record: CaseRecord) -> None:
        """Add a case."""
        dtype = record.dtype
        for result in record.results:
            key = VerdictKey(result.property_name, record.kernel, dtype)
            self.verdicts.setdefault(key, Results(key)).add(Judged(record, result))

    def failing(self, statuses: Sequence[Status] = BROKEN) -> Iterator[tuple[VerdictKey, Judged]]:
        """The first case of each verdict that has one of these statuses; earlier statuses take precedence."""
        for key, own in self.verdicts.items():
            found = next((each for status in statuses if (each := own.first(status)) is not None), None)
            if found is not None:
                yield key, found

    def wrong_before(self, job: Job, place: int) -> frozenset[str]:
        """The properties that a case before this place has shown to be wrong, in the kernel and dtype of a job."""
        own = (job.kernel, job.case.dtype)
        return frozenset(
            key.property_name
            for key, results in self.verdicts.items()
            if (key.kernel, key.dtype) == own
            if any(each.result.severity is Severity.WRONG and each.place < place for each in results.of(*FAILING))
        )


def tallied(records: Iterable[CaseRecord], owed: Iterable[VerdictKey] = ()) -> Tally:
    """The results of some cases."""
    found = Tally(owed)
    for record in records:
        found.add(record)
    return found


def verdicts_of(results: Iterable[CaseResult]) -> list[Verdict]:
    """The verdicts of results in the order of the stream, by themselves: nothing is known of kernels and properties."""
    tally = tallied(CaseRecord.of(result, place) for place, result in enumerate(results))
    return [own.verdict(LedgerProperty("")) for own in tally.verdicts.values()]


def _rank(judged: PropertyResult) -> int:
    """Sort key: the gravest violation first; those whose severity nobody asked for are alike."""
    return 0 if judged.severity is None else judged.severity.rank
