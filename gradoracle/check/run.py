"""Run: from a request to its report: plan, execute, add up, group into faults, minimise, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from gradoracle.check.aggregate import complete
from gradoracle.check.barring import Barring
from gradoracle.check.completeness import shortfall
from gradoracle.check.execute import Execution, executor_for
from gradoracle.check.faults import diagnosed, grouped
from gradoracle.check.minimise import Retry, as_found, minimised
from gradoracle.check.plan import Plan, Subjects, plan, plan_of, replayed, require_memory, resolved
from gradoracle.check.repeat_command import asked, command, repeated
from gradoracle.check.setup import require_unchanged
from gradoracle.check.severity import leave_open, settle_pooled
from gradoracle.check.totals import Totals
from gradoracle.check.triage import triaged
from gradoracle.check.usable_case import sizes_wanted
from gradoracle.execution.executor import Executor
from gradoracle.model.case import Case
from gradoracle.model.claims import claimed
from gradoracle.model.dims import written
from gradoracle.model.family import Family
from gradoracle.model.fault import VerdictKey
from gradoracle.model.job import CaseResult, Job, PropertyResult
from gradoracle.model.kernel import Kernel
from gradoracle.model.location import location_of
from gradoracle.model.severity import Severity
from gradoracle.model.sums import Shard
from gradoracle.model.verdict import BROKEN, Counterexample, Report, Status, Verdict
from gradoracle.project.provenance import provenance
from gradoracle.project.request import Progress, Request

SHARE_TO_SHRINK = 0.25  # of the time of a run, reserved for shrinking once something fails


def check(request: Request, progress: Progress | None = None) -> Report:
    """Check a target: cases x properties -> verdicts.

    Raises:
        UsageError: the request does not fit (unknown target, dtype, contract, property, no GPU, sizes beyond the
            memory).
    """
    with running(request, progress) as run:
        planned = plan(run.subjects, with_severity=True)
        require_memory(planned, *run.executor.memory())
        run.over(planned)
        return run.report()


def replay(line: str, progress: Progress | None = None, **fields: Any) -> Report:
    """Judge the case of one case line by all properties, or those matching ``property``, as ``gradoracle replay``.

    Raises:
        UsageError: the line is malformed, its target cannot be resolved, or it needs more memory than there is.
    """
    request, case = replayed(line, **fields)
    with running(request, progress) as run:
        run.over(plan_of(case, run.subjects, *run.executor.memory()))
        return run.report()


@contextmanager
def running(request: Request, progress: Progress | None = None) -> Iterator[Run]:
    """A Run of a request. Its processes start before the plan is made and end with the block.

    Raises:
        UsageError: the request cannot be resolved, or no process can be started.
    """
    started = time.monotonic()
    subjects, shown = resolved(request), progress or Progress()
    executor = executor_for(subjects)
    try:
        yield Run(subjects, executor, shown, started)
    finally:
        executor.close()
        shown.close()


@dataclass(frozen=True)
class Listener:
    """Callbacks that see the results of a run as they come and may end it.

    Attributes:
        result: a function, called with the result of each case.
        halt: a function, called between cases; returns what to stop at, or "".
        first: whether a job is run before the others.
    """

    result: Callable[[CaseResult], None]
    halt: Callable[[], str]
    first: Callable[[Job], bool]


class Run:
    """One request on its executor: ``over`` runs a plan, then ``report`` gives the report.

    Attributes:
        subjects: the resolved request.
        executor: the executor that runs the cases.
        totals: the sum of the results, once a plan has run.
        interrupted: the reason why it stopped early; "" where it did not.
    """

    def __init__(self, subjects: Subjects, executor: Executor, progress: Progress, started: float) -> None:
        self.subjects, self.executor = subjects, executor
        self._progress, self._started = progress, started
        seconds = subjects.request.seconds
        self._until = None if seconds is None else started + seconds
        self._barring = Barring(executor)
        self._first_failure: Verdict | None = None
        self.interrupted = ""

    def over(self, planned: Plan, listener: Listener | None = None) -> None:
        """Run the jobs of a plan and add up their results.

        Raises:
            UsageError: no process can be started, or the definition cannot be used.
        """
        self._plan, self.totals, request = planned, Totals(planned), self.subjects.request
        jobs = list(planned.jobs)
        if listener is not None:
            jobs.sort(key=lambda job: not listener.first(job))

        def reserve() -> float:
            failing = request.seconds is not None and any(True for _ in self.totals.aggregate.failing())
            return SHARE_TO_SHRINK * (request.seconds or 0.0) if failing else 0.0

        def take(result: CaseResult) -> str:
            if listener is not None:
                listener.result(result)
            self._take(result)
            if listener is not None:
                return listener.halt()
            return "the first failure" if request.fail_fast and self._first_failure is not None else ""

        wrong = self.totals.aggregate.wrong_before
        execution = Execution(
            planned, self.executor, self._barring, self._started, self._until, reserve, wrong, self.totals.compiled
        )
        self._stopped = execution.stopped
        self._progress.plan(len(jobs))
        execution.run(jobs, take)
        if execution.ended:
            self.interrupted = f"{execution.ended} after {self.totals.done} of {len(jobs)} cases"
        elif self.totals.done < len(jobs):
            self._tell("time is up")

    def report(self, compared: bool = False) -> Report:
        """The report of all results so far. Once interrupted, no further case is judged.

        Args:
            compared: whether it is compared with a base, which decides about violations of undecided severity.

        Raises:
            UsageError: a file of the target has changed meanwhile.
        """
        try:
            found = self._report(compared)
        except KeyboardInterrupt:
            self.interrupted = self.interrupted or "interrupted while the report was made"
            found = self._report(compared)
        require_unchanged(self.subjects.setup)
        return found

    def _report(self, compared: bool) -> Report:
        subjects, aggregate = self.subjects, self.totals.aggregate
        found = as_found(subjects, aggregate)
        faults = grouped(self._verdicts(found))
        retry = None if self.interrupted else Retry(self.executor, self._barring, self._progress, self._until)
        shown, interrupted = minimised(subjects, aggregate, faults, found, retry)
        self.interrupted = self.interrupted or interrupted
        if subjects.device == "cuda" and not self.interrupted:
            shown = triaged(subjects, aggregate, shown, self._until)
        verdicts = self._verdicts(shown)
        if not compared:
            leave_open(verdicts, subjects.request.fail_on)
        return report_of(
            self._plan,
            self.totals,
            verdicts,
            environment=self.executor.environment(),
            seconds=time.monotonic() - self._started,
            interrupted=self.interrupted,
            stopped=self._stopped,
            faults=diagnosed(faults, verdicts),
        )

    def _verdicts(self, counterexamples: dict[VerdictKey, Counterexample]) -> list[Verdict]:
        return verdicts_of(self.subjects, self.totals, counterexamples, bool(self.interrupted))

    def _take(self, result: CaseResult) -> None:
        self.totals.add(result)
        if self._first_failure is None and any(judged.status in BROKEN for judged in result.results):
            found = (first_failure(self.subjects, *each) for each in self.totals.aggregate.failing())
            self._first_failure = next((each for each in found if self._may_count(each)), None)
            if self._first_failure is not None:
                self._progress.failure(self._first_failure)
        self._tell("")

    def _may_count(self, failure: Verdict) -> bool:
        """Whether a failure counts; what fails on a GPU is widened only after the run, and may."""
        kernel = self.subjects.kernels[failure.kernel]
        is_claimed = not failure.about or any(map(kernel.is_claimed, failure.about))
        later = self.subjects.device == "cuda" and failure.severity is Severity.UNDECIDED and is_claimed
        return later or failure.counts(self.subjects.request.fail_on)

    def _tell(self, note: str) -> None:
        aggregate = self.totals.aggregate
        properties = len({sums.property_name for sums in aggregate.sums.values() if sums.statuses})
        self._progress.case(self.totals.done, properties, sum(1 for _ in aggregate.failing()), note)


def first_failure(subjects: Subjects, key: VerdictKey, status: Status, case: Case, result: PropertyResult) -> Verdict:
    """A failure as it was found, before its case is shrunk for the report."""
    prop, line = subjects.properties[key.property_name], subjects.line(key.kernel, case)
    shown = command(subjects.request, subjects.target(key.kernel), subjects.device, line, prop)
    return Verdict(
        key.property_name,
        key.kernel,
        key.dtype,
        status,
        cases_violated=int(status is Status.VIOLATED),
        cases_crashed=int(status is Status.CRASHED),
        counterexample=Counterexample(
            line, result.findings, message=result.reason, command=shown, crashed_in=result.crashed_in
        ),
        statement=prop.statement,
        severity=result.severity,
        declared=subjects.kernels[key.kernel].declares(key.dtype),
        derivative=prop.derivative,
    )


def verdicts_of(
    subjects: Subjects, totals: Totals, counterexamples: dict[VerdictKey, Counterexample], interrupted: bool
) -> list[Verdict]:
    """The verdicts of the totals, with what their properties declare and the command that reproduces each failure."""
    verdicts = totals.aggregate.verdicts(counterexamples)
    for verdict in verdicts:
        prop = subjects.properties[verdict.property_name]
        sums = totals.aggregate.sums[verdict.key]
        kernel = subjects.kernels[verdict.kernel]
        verdict.contract, verdict.declared = kernel.contract(verdict.dtype).name, kernel.declares(verdict.dtype)
        complete(verdict, prop, sums, decisive=prop.decisive, cut=interrupted)
        if verdict.counterexample is not None:
            target, line = subjects.target(verdict.kernel), verdict.counterexample.case
            if verdict.counterexample.pooled:
                shown = repeated(subjects.request, target, subjects.device, verdict.property_name)
            else:
                shown = command(subjects.request, target, subjects.device, line, prop)
            verdict.counterexample = replace(verdict.counterexample, command=shown)
    settle_pooled(verdicts)
    return verdicts


def excluded(subjects: Subjects) -> list[str]:
    """The properties that a request excludes, and those of compilations that it leaves to the gate, as notes."""
    request, notes = subjects.request, []
    if request.not_property:
        notes.append(f"excluded with --not-property: {', '.join(request.not_property)}")
    if subjects.unasked:
        names = ", ".join(subjects.unasked)
        notes.append(f"left to gradoracle gate: {names} (--property NAME checks it here)")
    return notes


def narrowed(kernel: Kernel, family: Family) -> str:
    """The dims that a kernel declares to support on fewer sizes than its family has, in words."""
    own = {dim: sizes for dim, sizes in kernel.dims.items() if sizes != family.dims.get(dim)}
    return ", ".join(written(dim, sizes) for dim, sizes in own.items())


def fixed(subjects: Subjects) -> list[str]:
    """The options that have one value in all cases though nobody fixed it, as notes: a kernel may ignore them."""
    notes: list[str] = []
    for kernel in subjects.kernels.values():
        for spec in subjects.family.signature.options:
            values = kernel.options.get(spec.name, spec.values)
            if len(values) == 1 and spec.name not in subjects.request.arguments:
                more = f"options={{{spec.name!r}: (...)}} of the family adds others"
                notes.append(f"{spec.name}: always {values[0]!r}, so a kernel that ignores it passes; {more}")
    return list(dict.fromkeys(notes))


def report_of(planned: Plan, totals: Totals, verdicts: list[Verdict], **fields: Any) -> Report:
    """The report of a plan.

    Args:
        planned: the plan that was run.
        totals: the sum of its results.
        verdicts: the verdicts of the totals, with counterexamples.
        **fields: fields of the Report that only the run knows: environment, seconds, interrupted, stopped, faults.
    """
    subjects, request, aggregate = planned.subjects, planned.subjects.request, totals.aggregate
    kernels = subjects.kernels
    contracts = {d: kernels[name].contract(d).name for name, dtypes in planned.dtypes.items() for d in dtypes}
    goals, refusals = totals.in_order()
    unmet = shortfall(
        verdicts,
        aggregate.sums,
        decisive={prop.name for prop in subjects.properties.values() if prop.decisive},
        require=request.require,
        undefined=[totals.undefined[place] for place in sorted(totals.undefined)],
        cases=totals.done,
        sizes=sizes_wanted(subjects.family),
    )
    return Report(
        request.target,
        subjects.family.name,
        list(kernels),
        subjects.device,
        request.seed,
        contracts,
        verdicts=verdicts,
        goals=goals,
        goals_wanted=dict(planned.expected),
        cases_planned=len(planned.jobs),
        cases_run=totals.done,
        fail_on=request.fail_on,
        refusals=refusals,
        notes=[*(note for kernel in kernels.values() for note in kernel.notes), *fixed(subjects), *excluded(subjects)],
        unmet=unmet,
        cases_judged=aggregate.judged,
        cases_alarming=aggregate.alarming,
        locations={name: place for name, kernel in kernels.items() if (place := location_of(kernel)) is not None},
        measurements=totals.measurements,
        shard=shard_of(planned, totals),
        planned=dict(aggregate.planned),
        judged=dict(aggregate.answered),
        seconds_compiling=totals.seconds_compiling,
        longest_compilation=totals.longest_compilation,
        claims={name: claimed(kernel) for name, kernel in kernels.items()},
        narrowed={name: known for name, kernel in kernels.items() if (known := narrowed(kernel, subjects.family))},
        **fields,
    )


def shard_of(plan: Plan, totals: Totals) -> Shard | None:
    """What the report of a shard carries; None for a whole run."""
    subjects, request = plan.subjects, plan.subjects.request
    if request.shard == (1, 1):
        return None
    own = provenance(subjects.functions, request.target)
    return Shard(
        *request.shard,
        asked(request),
        plan.digest,
        len(plan.whole),
        own.files,
        own.packages,
        request.require,
        tuple(prop.name for prop in subjects.properties.values() if prop.decisive),
        {name: repeated(request, subjects.target(name), subjects.device, shard=(1, 1)) for name in subjects.kernels},
        sizes_wanted(subjects.family),
        totals.first,
        {str(place): sentence for place, sentence in totals.undefined.items()},
        tuple(totals.aggregate.sums.values()),
    )
