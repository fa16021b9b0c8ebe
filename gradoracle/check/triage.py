"""Triage: judges what violates a property on a GPU on the widened kernel, in the interpreter on the CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradoracle.cases.saved_tensors import Given
from gradoracle.check.barring import Barring
from gradoracle.check.execute import executor_for
from gradoracle.check.fold import shown_cases
from gradoracle.check.plan import Subjects
from gradoracle.check.severity import of_widened, ruled, with_left
from gradoracle.check.tally import Judged, Results
from gradoracle.model.case import Case, parse
from gradoracle.model.fault import VerdictKey
from gradoracle.model.finding import Finding
from gradoracle.model.job import Job, PropertyResult
from gradoracle.model.ledger import Ledger, SeverityRecord
from gradoracle.model.severity import Severity, gravest
from gradoracle.model.verdict import Counterexample, Status

THIS_PROCESS = "its Triton kernels were compiled in this process; gradoracle check judges them widened, on the CPU"
MOST_CASES = 9  # of a verdict: its counterexample and the violating cases with the most elements


@dataclass(frozen=True)
class _Open:
    """A verdict of which a case fails: its results, and the case that a report shows."""

    results: Results
    judged: Judged
    shown: Counterexample

    @property
    def key(self) -> VerdictKey:
        return self.results.key

    @property
    def is_undecided(self) -> bool:
        """Whether nothing has decided its severity; a gate asks only for that of the case that is shown."""
        return self.results.is_undecided or (not self.results.asked and self.shown.severity is Severity.UNDECIDED)

    @property
    def cases(self) -> list[Case]:
        """Those that are judged widened: that which is shown, and others where their severities were asked for."""
        others = [each.record.built for each in self.results.telling] if self.results.asked else []
        return list(dict.fromkeys([parse(self.shown.case)[2], *others]))[:MOST_CASES]


def triaged(subjects: Subjects, ledger: Ledger, until: float | None) -> list[SeverityRecord]:
    """The severities of the verdicts that were undecided on the GPU.

    A verdict is wrong if one of its cases is. It stays undecided if none of them could be widened, unless no preset
    explains the case that is shown, which is wrong whatever it is.

    Args:
        subjects: the resolved request.
        ledger: of its cases, with those that were shrunk.
        until: the time after which no case is begun, on the monotonic clock; None: no limit.
    """
    undecided = [_Open(*each) for each in shown_cases(ledger)]
    undecided = [each for each in undecided if each.is_undecided]
    if not undecided:
        return []
    if isinstance(subjects.request.inputs, Given):
        return [_settled(subjects, each, (Severity.UNDECIDED, THIS_PROCESS)) for each in undecided]
    jobs = {
        each.key: [Job(each.key.kernel, case, (each.key.property_name,), widened=True) for case in each.cases]
        for each in undecided
    }
    workers = subjects.request.workers
    on_cpu = replace(
        subjects,
        device="cpu",
        setup=replace(subjects.setup, device="cpu"),
        request=replace(subjects.request, scheduler=None, workers=1 if workers == 0 else workers),
    )
    where = {
        key: Job(key.kernel, own[0].case, (key.property_name,), with_severity=True, located=True)
        for key, own in jobs.items()
    }
    results: dict[tuple[VerdictKey, Case, bool], PropertyResult] = {}
    executor = executor_for(on_cpu)
    try:
        barring, every = Barring(executor), [job for own in jobs.values() for job in own] + list(where.values())
        for result in executor.run(_until(every, until)):
            for own in (settled := barring.settle(result)).results:
                key = VerdictKey(own.property_name, settled.kernel, settled.case.dtype)
                results[key, settled.case, result.job.widened] = own
    finally:
        executor.close()
    made = []
    for each in undecided:
        key, findings = each.key, each.shown.findings
        widened = [results.get((key, job.case, True)) for job in jobs[key]]
        decided = _decided(widened, findings, key.dtype)
        left = () if widened[0] is None else widened[0].findings
        place = results.get((key, where[key].case, False))
        if place is not None and place.status is not Status.VIOLATED:  # the interpreter shows something else
            place = None
        if place is not None and gravest([decided[0], place.severity]) is not decided[0]:  # such as an overflow
            decided = (place.severity or decided[0], place.undecided)
        record = _settled(subjects, each, decided, left)
        if place is not None and place.severity is record.severity:  # violated in the interpreter, too
            record = replace(record, is_located=True, loss=place.loss, constant=place.constant)
        made.append(record)
    return made


def _settled(
    subjects: Subjects, own: _Open, decided: tuple[Severity, str], left: Sequence[Finding] = ()
) -> SeverityRecord:
    """The severity of a verdict.

    Args:
        subjects: the resolved request.
        own: the verdict.
        decided: the severity by the widened kernel, and why it is undecided.
        left: the findings of the widened kernel on the case that is shown.
    """
    prop, kernel = subjects.properties[own.key.property_name], subjects.kernels[own.key.kernel]
    findings = with_left(own.shown.findings, left)
    severity, why = ruled(prop, kernel, own.key.dtype, decided, findings, unexplained=own.shown.unexplained)
    return SeverityRecord(own.key, own.judged.place, severity, why)


def _until(jobs: Sequence[Job], until: float | None) -> Iterator[Job]:
    for job in jobs:
        if until is not None and time.monotonic() > until:
            return
        yield job


def _decided(
    results: Sequence[PropertyResult | None], as_written: Sequence[Finding], dtype: str
) -> tuple[Severity, str]:
    """The gravest severity of a verdict's cases, and why it is undecided."""
    found = [
        (Severity.UNDECIDED, "the time was up before the kernel was widened")
        if result is None
        else of_widened(result, as_written, dtype)
        for result in results
    ]
    severity = gravest(each for each, _ in found) or Severity.UNDECIDED
    return severity, next((why for each, why in found if each is severity), "")
