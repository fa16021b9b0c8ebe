"""Aggregate: case results added up into one Verdict for each property, kernel and dtype."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from gradoracle.check.spread import pooled
from gradoracle.model.case import Case
from gradoracle.model.contract import weakest
from gradoracle.model.fault import VerdictKey
from gradoracle.model.finding import Outcome, malformed
from gradoracle.model.job import CaseResult, Job, PropertyResult
from gradoracle.model.property import Property, PropertyKind
from gradoracle.model.reason import Reason
from gradoracle.model.severity import Severity, gravest
from gradoracle.model.sums import TELLING, Left, Seen, Sums, Telling, add, in_order, order_of_telling
from gradoracle.model.verdict import BROKEN, FAILING, Counterexample, Status, Verdict
from gradoracle.model.wording import counted

_MOST_WRONG = 1 << 18  # elements of a violating case that is kept


class Aggregate:
    """Adds up case results; ``verdicts`` may be called at any time.

    Attributes:
        sums: the sums of each verdict, in report order.
        judged: the number of cases on which some property held, was violated or crashed.
        planned: the number of planned cases, by "kernel in dtype".
        answered: the number of cases with an answer about the kernel, a refusal included, by "kernel in dtype".
        alarming: the number of cases on which some property was violated or crashed.

    Args:
        line: writes a case of a kernel as a line; by default with the kernel as its target.
        place: the position of a case in the stream; by default results count in the order in which they are added.
    """

    def __init__(
        self,
        line: Callable[[str, Case], str] = lambda kernel, case: case.line(kernel),
        place: Callable[[str, Case], int] | None = None,
    ) -> None:
        self._line, self._place = line, place
        self._added = 0
        # of each status that fails, the first case with its place
        self._first: dict[tuple[VerdictKey, Status], tuple[int, Case, PropertyResult]] = {}
        # the cases of ``Sums.telling``, by place
        self._telling: dict[VerdictKey, dict[int, tuple[Case, PropertyResult]]] = {}
        self.sums: dict[VerdictKey, Sums] = {}
        self.judged = self.alarming = 0
        self.planned: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()

    def plan(self, kernel: str, case: Case) -> None:
        """Announce a planned case."""
        self.planned[_of(kernel, case)] += 1

    def expect(self, key: VerdictKey) -> None:
        """Announce a verdict that the run must give, so that it shows where no case decides it."""
        self.sums.setdefault(key, Sums(key.property_name, key.kernel, key.dtype))

    def add(self, result: CaseResult) -> None:
        """Add one case."""
        statuses = {judged.status for judged in result.results}
        alarm = not statuses.isdisjoint(BROKEN)
        self.alarming += alarm
        self.judged += alarm or Status.HOLDS in statuses
        self.answered[_of(result.kernel, result.case)] += not statuses <= {Status.NOT_CHECKED, Status.ERROR}
        place = self._place_of(result.kernel, result.case)
        self._added += 1
        for judged in result.results:
            key = VerdictKey(judged.property_name, result.kernel, result.case.dtype)
            self._add(key, result.case, judged, place)

    def failing(self, statuses: Sequence[Status] = BROKEN) -> Iterable[tuple[VerdictKey, Status, Case, PropertyResult]]:
        """The first case of each verdict that has one of these statuses; earlier statuses take precedence."""
        for key in self.sums:
            for status in statuses:
                if (key, status) in self._first:
                    _, case, result = self._first[key, status]
                    yield key, status, case, result
                    break

    def wrong_before(self, job: Job) -> frozenset[str]:
        """The properties that a case before this one in the stream has shown to be wrong, in this kernel and dtype."""
        place, own = self._place_of(job.kernel, job.case), (job.kernel, job.case.dtype)
        return frozenset(
            key.property_name
            for (key, _), (first, _, result) in self._first.items()
            if (key.kernel, key.dtype) == own and result.severity is Severity.WRONG and first < place
        )

    def telling(self, key: VerdictKey) -> list[tuple[Case, PropertyResult]]:
        """The violating cases of a verdict with the most elements, largest first."""
        return [self._telling[key][each.place] for each in self.sums[key].telling]

    def verdicts(self, counterexamples: Mapping[VerdictKey, Counterexample]) -> list[Verdict]:
        """One Verdict per property, kernel and dtype, with the pooled rules applied to all its cases."""
        return [verdict_of(sums, counterexamples.get(key)) for key, sums in self.sums.items()]

    def _place_of(self, kernel: str, case: Case) -> int:
        return self._added if self._place is None else self._place(kernel, case)

    def _add(self, key: VerdictKey, case: Case, judged: PropertyResult, place: int) -> None:
        self.expect(key)
        sums, once = self.sums[key], Seen(1, place)
        status = judged.status.value
        if judged.status is Status.HOLDS and (status not in sums.statuses or place < sums.statuses[status].first):
            sums.held = self._line(key.kernel, case)
        add(sums.statuses, status, once)
        if judged.status in FAILING:
            first = self._first.get((key, judged.status))
            if first is None or (_rank(judged), place) < (_rank(first[2]), first[0]):
                self._first[key, judged.status] = (place, case, judged)
        if judged.status is Status.REFUSED:
            add(sums.refusals, judged.reason, once)
        if judged.status in (Status.REFUSED, Status.NOT_CHECKED):
            add(sums.reasons, judged.reason, once)
            if judged.why is not None:
                sums.kinds[judged.reason] = judged.why
            if judged.why is Reason.DETACHED and sums.detachments[0][1].first == place:
                sums.detached = self._line(key.kernel, case)
        if judged.status is Status.VIOLATED:
            self._keep(key, case, judged, place)
            _add_severity(sums, judged, once)
        if judged.status is Status.HOLDS:  # where nothing was decided, the reason says it
            for note in dict.fromkeys(note for finding in judged.findings for note in finding.notes):
                sums.notes[note] = sums.notes.get(note, 0) + 1
        for finding in judged.findings:
            if finding.outcome is Outcome.NOT_CHECKED:
                known_left = sums.left.get(finding.tensor)
                if known_left is None or place < known_left.first:
                    sums.left[finding.tensor] = Left(finding.message, place)
                continue
            sums.decided[finding.tensor] = sums.decided.get(finding.tensor, 0) + 1
            if finding.error < float("inf"):
                sums.error = max(sums.error, finding.error)
                sums.in_sigma = max(sums.in_sigma, finding.error_in_sigma)
            if finding.sensitivity is not None:
                sums.sensitivities.append(finding.sensitivity)
            if finding.gives_away and finding.outcome is Outcome.HOLDS:
                note = "less accurate than 'definition': " + finding.tensor
                sums.notes[note] = sums.notes.get(note, 0) + 1
            if finding.off:
                sums.off[finding.tensor] = max(sums.off.get(finding.tensor, 0.0), finding.off)
            if finding.pool is not None:
                known = sums.pools.get(finding.tensor)
                sums.pools[finding.tensor] = finding.pool if known is None else known + finding.pool
                sums.pooled += 1

    def _keep(self, key: VerdictKey, case: Case, judged: PropertyResult, place: int) -> None:
        """Keep a violating case if it has more elements than those kept so far."""
        wrong = [finding for finding in judged.findings if finding.outcome is Outcome.VIOLATED]
        elements = sum(finding.elements for finding in wrong)
        if elements > _MOST_WRONG:
            return
        kept = sorted([*self.sums[key].telling, Telling(place, elements, len(wrong))], key=order_of_telling)[:TELLING]
        cases = {**self._telling.get(key, {}), place: (case, judged)}
        self.sums[key].telling = kept
        self._telling[key] = {each.place: cases[each.place] for each in kept}


def _rank(judged: PropertyResult) -> int:
    """Sort key: the gravest violation first; those whose severity nobody asked for are alike."""
    return 0 if judged.severity is None else judged.severity.rank


def _add_severity(sums: Sums, judged: PropertyResult, once: Seen) -> None:
    """Count the severity of a violating case, and what explains it; once one is wrong, no other is graver."""
    if judged.severity is None:
        return
    if judged.severity is Severity.WRONG:
        known = sums.severities.get(judged.severity.value, once)
        first = min(known, once, key=lambda seen: seen.first)
        sums.severities, sums.undecided, sums.presets = {judged.severity.value: first}, {}, {}
    if Severity.WRONG.value in sums.severities:
        return
    add(sums.severities, judged.severity.value, once)
    if judged.undecided:
        add(sums.undecided, judged.undecided, once)
    if judged.severity in (Severity.PRECISION, Severity.UNDECIDED):
        add(sums.presets, judged.preset, once)


def _keeps(sums: Sums, counterexample: Counterexample | None) -> str:
    """The preset that explains every violating case; where severities were not asked for, the one that is shown."""
    if not sums.severities and counterexample is not None:
        return counterexample.preset
    return "" if Severity.WRONG.value in sums.severities else weakest(sums.presets)


def verdict_of(sums: Sums, counterexample: Counterexample | None) -> Verdict:
    """The verdict of these sums, with the counterexample where it fails."""
    verdict = Verdict(
        sums.property_name,
        sums.kernel,
        sums.dtype,
        _status(sums),
        cases_held=sums.count("holds"),
        cases_violated=sums.count("violated"),
        cases_crashed=sums.count("crashed"),
        cases_error=sums.count("error"),
        cases_refused=sums.count("refused"),
        cases_not_checked=sums.count("not checked"),
        reasons={reason: each.count for reason, each in in_order(sums.reasons)},
        worst_error=sums.error,
        worst_in_sigma=sums.in_sigma,
        sensitivity=median(sums.sensitivities) if sums.sensitivities else None,
        counterexample=counterexample,
        notes=[f"{note} on {n} cases" for note, n in sums.notes.items()] + _formulas(sums),
        tensors_compared=sum(sums.decided.values()),
        severity=_severity(sums) or (None if counterexample is None else counterexample.severity),
        keeps=_keeps(sums, counterexample),
        why=next((sums.kinds.get(reason) for reason, _ in in_order(sums.reasons)), None),
    )
    shown = "" if counterexample is None else counterexample.undecided
    if verdict.severity is Severity.UNDECIDED:
        verdict.severity_note = next((reason for reason, _ in in_order(sums.undecided)), shown)
    elif verdict.severity is Severity.WRONG:
        verdict.severity_note = shown
    elif unknown := in_order(sums.undecided):
        count = counted(sum(seen.count for _, seen in unknown), "violating case")
        verdict.notes.append(f"wrong or lost precision on {count}: {unknown[0][0]}")
    if not sums.statuses:
        verdict.reasons = {"it applies to no case of this run": 0}
    if verdict.status is Status.HOLDS:
        broken = [f for f in pooled(sums.pools) if f.outcome is Outcome.VIOLATED]
        if broken:
            verdict.status = Status.VIOLATED
            verdict.worst_error = max(f.error for f in broken)
            message = f"over {sums.pooled} tensors of all {sums.dtype} cases together, each within its own budget"
            verdict.counterexample = Counterexample(sums.held, tuple(broken), message=message, pooled=True)
    return verdict


def _formulas(sums: Sums) -> list[str]:
    """A note on formulas that are off by less than the dtype shows."""
    tensors = [f"{name} by {off:.2g}" for name, off in sorted(sums.off.items())]
    note = "the formula is off by less than float32 shows, relative to the value"
    return [f"{note}: {', '.join(tensors)}"] if tensors else []


def complete(verdict: Verdict, like: Property | Verdict, sums: Sums, *, decisive: bool, cut: bool) -> None:
    """Fill in what a verdict's sums do not hold.

    Args:
        verdict: the result of ``verdict_of``.
        like: its property, or the same verdict of another shard: both carry the fields to copy.
        sums: the sums of the verdict.
        decisive: whether each of its tensors must be decided.
        cut: whether the run ended before its last case.
    """
    verdict.statement, verdict.rank, verdict.kind, verdict.cause = like.statement, like.rank, like.kind, like.cause
    verdict.derivative = like.derivative
    if decisive and verdict.status is Status.HOLDS and sums.detached:
        _add_detached(verdict, sums)
    verdict.undecided = undecided_tensors(sums) if decisive else {}
    if like.kind is PropertyKind.ARGUMENTS and verdict.status is Status.CRASHED:
        verdict.severity = Severity.ROBUSTNESS  # what was passed is wrong
    if cut and not sums.statuses:
        verdict.reasons = {"the run was interrupted before its first case": 0}


def _add_detached(verdict: Verdict, sums: Sums) -> None:
    """Violate a verdict where some cases have a gradient, and others silently have none."""
    of_cases = sums.detachments
    message = f"{of_cases[0][0]}, as it does on other cases"
    found = replace(malformed("gradient", message), derivative=verdict.derivative)
    verdict.status, verdict.severity = Status.VIOLATED, Severity.WRONG
    verdict.cases_violated, verdict.worst_error = sum(seen.count for _, seen in of_cases), math.inf
    verdict.counterexample = Counterexample(sums.detached, (found,), message=message, severity=Severity.WRONG)


def undecided_tensors(sums: Sums) -> dict[str, str]:
    """The tensors that no case decided, each with the reason; none where the property is violated."""
    left = sorted(sums.left.items(), key=lambda item: item[1].first)
    return {name: each.reason for name, each in left if not sums.decided.get(name) and not sums.count("violated")}


def _of(kernel: str, case: Case) -> str:
    """The key under which cases are counted."""
    return f"{kernel} in {case.dtype}"


def _severity(sums: Sums) -> Severity | None:
    """The gravest of the failing cases; a crash is wrong."""
    if sums.count("crashed"):
        return Severity.WRONG
    return gravest(map(Severity, sums.severities))


def _status(sums: Sums) -> Status:
    """The worst informative status; refused and not checked only where no case held."""
    for status in (*FAILING, Status.HOLDS, Status.REFUSED):
        if sums.count(status.value):
            return status
    return Status.NOT_CHECKED
