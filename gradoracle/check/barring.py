"""Barring: a kernel's call that has ended its process on too many cases is no longer made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from gradoracle.execution.executor import Executor, Result
from gradoracle.model.job import CaseResult, EndedProcess, Job, PropertyResult
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status

MOST_OF_A_CALL = {"time limit": 2}  # cases on which one call of a kernel may do so
MOST_OTHERWISE = 3


class Barring:
    """Counts the calls that end their process, and spares later cases those that do so again and again."""

    def __init__(self, workers: Executor) -> None:
        self._workers = workers
        self._ended: Counter[tuple[str, str, str]] = Counter()  # (kernel, call, kind) -> cases

    def spare(self, job: Job) -> Job:
        """The job without the calls that have ended a process on too many cases before."""
        barred = {
            call: (Reason.BARRED, f"{call} was not called again: it had crashed on {count} cases ({kind})")
            for (kernel, call, kind), count in self._ended.items()
            if kernel == job.kernel and count >= MOST_OF_A_CALL.get(kind, MOST_OTHERWISE)
        }
        return replace(job, barred=barred) if barred else job

    def settle(self, result: Result) -> CaseResult:
        """The final result of a job.

        Where results come in order, a case that ran before one of its calls was barred is run again without that call:
        so cases that run in parallel give the same results as in sequence.
        """
        spared = self.spare(result.job)
        if self._workers.in_order and spared.barred != result.job.barred:
            result = self._workers.run_alone(spared)
        found = as_case_result(result)
        self.count(found.kernel, found.ended)
        return found

    def count(self, kernel: str, ended: Iterable[EndedProcess]) -> None:
        """Count the calls that ended their process on one case."""
        for each in {(own.call, own.kind) for own in ended if own.kind != "memory"}:
            self._ended[(kernel, *each)] += 1

    def attempt(self, job: Job) -> CaseResult:
        """One attempt while a crash is shrunk: nothing is counted, and a call that hangs leaves *not checked*."""
        found = as_case_result(self._workers.run_alone(job))
        results = (
            replace(each, status=Status.NOT_CHECKED) if each.why is Reason.HUNG else each for each in found.results
        )
        return replace(found, results=tuple(results))


def as_case_result(result: Result) -> CaseResult:
    """The result of a case, also of one whose judge failed, or was ended by the system for lack of memory."""
    job: Job = result.job
    if result.error:
        reason = (result.error.strip().splitlines() or ["a process failed without a message"])[-1]
        return _all(job, Status.ERROR, reason, Reason.ERROR, result.error)
    if result.crash is not None:
        if result.crash.kind == "memory":
            return _all(job, Status.NOT_CHECKED, f"memory: the process was {result.crash.how}", Reason.MEMORY)
        return _all(job, Status.CRASHED, f"outside of the calls of the kernel: {result.crash.how}", Reason.ENDED)
    value: CaseResult = result.value
    return value


def _all(job: Job, status: Status, reason: str, why: Reason, trace: str = "") -> CaseResult:
    """The same result for every property of a job."""
    results = (
        PropertyResult(property_name, status, reason=reason, trace=trace, why=why) for property_name in job.properties
    )
    return CaseResult(job.kernel, job.case, tuple(results))
