"""Crashes: the result of a case on which a kernel call hangs, dies or exits, and when such a call is no longer made."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

from gradoracle.execution.executor import Crash, Executor, Result
from gradoracle.model.case import Case
from gradoracle.model.job import CaseResult, Job, PropertyResult
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status

MOST_OF_A_CASE = 4  # calls that may end their process on one case; the rest of the case is then not checked
MOST_OF_A_CALL = {"time limit": 2}  # cases on which one call of a kernel may do so; it is then no longer made
MOST_OTHERWISE = 3


class Crashes:
    """Gets a result for every job, even if its kernel ended the process."""

    def __init__(self, workers: Executor, until: float | None = None) -> None:
        self._until = until  # when the run is over
        self._workers = workers
        self._slow: set[tuple[str, Case]] = set()
        self._ended: Counter[tuple[str, str, str]] = Counter()  # (kernel, call, kind) -> cases

    def spare(self, job: Job) -> Job:
        """The job without the calls that have ended a process on too many cases before."""
        barred = {
            call: (Reason.BARRED, f"{call} was not called again: it had crashed on {count} cases ({kind})")
            for (kernel, call, kind), count in self._ended.items()
            if kernel == job.kernel and count >= MOST_OF_A_CALL.get(kind, MOST_OTHERWISE)
        }
        return replace(job, barred=barred) if barred else job

    def current(self, result: Result) -> Result:
        """The result; a case that ran before one of its calls was barred is run again without that call.

        So where results come in order, cases run in parallel give the same results as in sequence.
        """
        job: Job = result.job
        spared = self.spare(job)
        return self._workers.run_alone(spared) if self._workers.in_order and spared.barred != job.barred else result

    def settle(self, result: Result) -> CaseResult:
        """The final result: a time-out is run again alone, and the rest of a crashed case in a fresh worker.

        A property that needs a call which crashed is *crashed*; one that needs a call not made is *not checked*.
        """
        job: Job = result.job
        seen: set[tuple[str, str]] = set()
        while (crash := result.crash) is not None or result.error:
            if crash is None:
                return _error(job, result.error)
            if crash.kind == "time limit" and self._is_late():
                return CaseResult(job.kernel, job.case, ())
            if crash.kind == "time limit" and (job.kernel, job.case) not in self._slow:
                self._slow.add((job.kernel, job.case))
                result = self._workers.run_alone(job, 2.0)
                continue
            call = result.value.lost if result.value is not None else crash.phase
            if call is None:
                return self._unplaced(job, crash)
            job = self._without(job, call, crash, seen)
            result = self._workers.run_alone(job)
        value: CaseResult = result.value
        return value

    def _is_late(self) -> bool:
        return self._until is not None and time.monotonic() > self._until

    def attempt(self, job: Job, limit_factor: float) -> CaseResult:
        """One attempt while a crash is shrunk: a property whose call ends the process is *crashed*; nothing is counted.

        An attempt that hangs, runs out of memory or dies outside of any call is *not checked*.
        """
        result = self._workers.run_alone(job, limit_factor)
        if result.error:
            return _error(job, result.error)
        crash = result.crash
        if crash is None:
            value: CaseResult = result.value
            return value
        call = result.value.lost if result.value is not None else crash.phase
        counts = call is not None and crash.kind not in ("time limit", "memory")
        status = Status.CRASHED if counts else Status.NOT_CHECKED
        return _all(job, status, f"{call}: {crash.how}", _kind(crash))

    def _without(self, job: Job, call: str, crash: Crash, seen: set[tuple[str, str]]) -> Job:
        """The job with this call marked as crashing or, where memory ran out, left out."""
        if crash.kind == "memory":
            return replace(job, barred={**job.barred, call: (Reason.MEMORY, f"memory: {call} was {crash.how}")})
        own = call.rpartition(": ")[2]
        if (own, crash.kind) not in seen:
            seen.add((own, crash.kind))
            self._ended[job.kernel, own, crash.kind] += 1
        remedy = "; if it is only slow, raise --call-seconds" if crash.kind == "time limit" else ""
        crashes = {**job.crashes, call: (_kind(crash), f"{call}: {crash.how}{remedy}")}
        barred = dict(job.barred)
        if len(crashes) >= MOST_OF_A_CASE:
            barred["*"] = (Reason.BARRED, f"skipped after {len(crashes)} calls had crashed on the same case")
        return replace(job, crashes=crashes, barred=barred)

    def _unplaced(self, job: Job, crash: Crash) -> CaseResult:
        """The process died while no kernel ran: out of memory, or of damage done by an earlier call."""
        lacking = crash.kind == "memory"
        status = Status.NOT_CHECKED if lacking else Status.CRASHED
        reason = f"memory: the process was {crash.how}" if lacking else f"after the kernel's calls: {crash.how}"
        return _all(job, status, reason, _kind(crash))


def _error(job: Job, trace: str) -> CaseResult:
    """The result of a case on which gradoracle itself failed outside of any property."""
    reason = (trace.strip().splitlines() or ["a process failed without a message"])[-1]
    return _all(job, Status.ERROR, reason, Reason.ERROR, trace)


def _all(job: Job, status: Status, reason: str, why: Reason, trace: str = "") -> CaseResult:
    """The same result for every property of a job."""
    results = (
        PropertyResult(property_name, status, reason=reason, trace=trace, why=why) for property_name in job.properties
    )
    return CaseResult(job.kernel, job.case, tuple(results))


def _kind(crash: Crash) -> Reason:
    return {"time limit": Reason.HUNG, "memory": Reason.MEMORY}.get(crash.kind, Reason.ENDED)
