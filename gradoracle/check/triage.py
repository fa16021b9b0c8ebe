"""Triage: judges what violates a property on a GPU on the widened kernel, in the interpreter on the CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gradoracle.cases.saved_tensors import Given
from gradoracle.check.aggregate import Aggregate
from gradoracle.check.barring import Barring
from gradoracle.check.execute import executor_for
from gradoracle.check.plan import Subjects
from gradoracle.check.severity import of_widened, ruled, with_left
from gradoracle.model.case import Case, parse
from gradoracle.model.fault import VerdictKey
from gradoracle.model.finding import Finding
from gradoracle.model.job import Job, PropertyResult
from gradoracle.model.severity import Severity, gravest
from gradoracle.model.sums import Sums
from gradoracle.model.verdict import Counterexample, Status

THIS_PROCESS = "its Triton kernels were compiled in this process; gradoracle check judges them widened, on the CPU"
MOST_CASES = 9  # of a verdict: its counterexample and the violating cases with the most elements


def triaged(
    subjects: Subjects, aggregate: Aggregate, found: Mapping[VerdictKey, Counterexample], until: float | None
) -> dict[VerdictKey, Counterexample]:
    """The counterexamples with the severities of the verdicts that were undecided on the GPU, set in the sums as well.

    A verdict is wrong if one of its cases is. It stays undecided if none of them could be widened, unless no preset
    explains the case that is shown, which is wrong whatever it is.

    Args:
        subjects: the resolved request.
        aggregate: the sums of its results.
        found: the counterexamples, shrunk.
        until: the time after which no case is begun, on the monotonic clock; None: no limit.
    """
    undecided = {key: shown for key, shown in found.items() if _is_undecided(aggregate.sums[key], shown)}
    if not undecided:
        return dict(found)
    if isinstance(subjects.request.inputs, Given):
        return dict(found) | {
            key: _settled(subjects, aggregate.sums[key], shown, (Severity.UNDECIDED, THIS_PROCESS))
            for key, shown in undecided.items()
        }
    jobs = {
        key: [Job(key.kernel, case, (key.property_name,), widened=True) for case in _cases(aggregate, key, shown)]
        for key, shown in undecided.items()
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
    made = dict(found)
    for key, shown in undecided.items():
        widened = [results.get((key, job.case, True)) for job in jobs[key]]
        decided = _decided(widened, shown.findings, key.dtype)
        left = () if widened[0] is None else widened[0].findings
        place = results.get((key, where[key].case, False))
        if place is not None and place.status is not Status.VIOLATED:  # the interpreter shows something else
            place = None
        if place is not None and gravest([decided[0], place.severity]) is not decided[0]:  # such as an overflow
            decided = (place.severity or decided[0], place.undecided)
        made[key] = _settled(subjects, aggregate.sums[key], shown, decided, left)
        if place is not None and place.severity is made[key].severity:  # violated in the interpreter, too
            made[key] = replace(made[key], loss=place.loss, constant=place.constant)
    return made


def _is_undecided(sums: Sums, shown: Counterexample) -> bool:
    """Whether nothing has decided the severity of a verdict; a gate asks only for that of its counterexample."""
    return sums.severities.keys() == {Severity.UNDECIDED.value} or (
        not sums.severities and shown.severity is Severity.UNDECIDED
    )


def _settled(
    subjects: Subjects, sums: Sums, shown: Counterexample, decided: tuple[Severity, str], left: Sequence[Finding] = ()
) -> Counterexample:
    """The counterexample with a severity, and why it is undecided; that of its verdict's cases is set in the sums.

    Args:
        subjects: the resolved request.
        sums: the sums of the verdict.
        shown: its counterexample.
        decided: the severity by the widened kernel, and why it is undecided.
        left: the findings of the widened kernel on the case that is shown.
    """
    prop, kernel = subjects.properties[sums.property_name], subjects.kernels[sums.kernel]
    findings = with_left(shown.findings, left)
    severity, why = ruled(prop, kernel, sums.dtype, decided, findings, unexplained=shown.unexplained)
    if sums.severities:
        sums.severities = {severity.value: sums.severities[Severity.UNDECIDED.value]}
        sums.undecided = {why: sums.severities[severity.value]} if why else {}
    if severity is Severity.WRONG and shown.preset:  # no contract explains a wrong formula
        shown = replace(shown, preset="", message="")
    return replace(shown, severity=severity, undecided=why)


def _cases(aggregate: Aggregate, key: VerdictKey, shown: Counterexample) -> Sequence[Case]:
    """The cases of a verdict that are judged widened: that which is shown, and others where theirs are asked for."""
    others = (case for case, _ in aggregate.telling(key)) if aggregate.sums[key].severities else ()
    return list(dict.fromkeys([parse(shown.case)[2], *others]))[:MOST_CASES]


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
