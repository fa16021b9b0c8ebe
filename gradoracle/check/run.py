"""Run: from a request to its report: plan, execute, add up, group into faults, minimise, report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gradoracle.cases.case_space import length
from gradoracle.cases.coverage import goals_of
from gradoracle.check.barring import Barring
from gradoracle.check.execute import Execution, executor_for
from gradoracle.check.fold import faults_of, first_failure, report_of
from gradoracle.check.minimise import Retry, is_shrunk, minimised
from gradoracle.check.plan import Plan, Subjects, plan, plan_of, replayed, require_memory, resolved
from gradoracle.check.repeat_command import again_saved, asked, held, repeated
from gradoracle.check.setup import require_unchanged
from gradoracle.check.tally import tallied
from gradoracle.check.triage import triaged
from gradoracle.check.usable_case import sizes_wanted
from gradoracle.execution.executor import Executor
from gradoracle.execution.other_python import other_python
from gradoracle.model.claims import claimed
from gradoracle.model.dims import written
from gradoracle.model.family import Family
from gradoracle.model.job import CaseResult, Job
from gradoracle.model.kernel import Kernel
from gradoracle.model.ledger import (
    CaseRecord,
    EndRecord,
    Header,
    Ledger,
    LedgerKernel,
    LedgerProperty,
    Record,
    Section,
    SmallerRecord,
    name_of,
)
from gradoracle.model.ledger_file import LedgerFile
from gradoracle.model.location import location_of
from gradoracle.model.property import Property
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import BROKEN, Report, Status, Verdict
from gradoracle.project.provenance import Provenance, provenance
from gradoracle.project.request import Progress, Request

SHARE_TO_SHRINK = 0.25  # of the time of a run, reserved for shrinking once something fails


def check(request: Request, progress: Progress | None = None, file: LedgerFile | None = None) -> Report:
    """Check a target: cases x properties -> verdicts.

    Args:
        request: what to check.
        progress: shows it.
        file: where the ledger is written; what it has of this run is not judged again.

    Raises:
        UsageError: the request does not fit (unknown target, dtype, contract, property, no GPU, sizes beyond the
            memory).
    """
    with running(request, progress, file) as run:
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
def running(request: Request, progress: Progress | None = None, file: LedgerFile | None = None) -> Iterator[Run]:
    """A Run of a request. Its processes start before the plan is made and end with the block.

    Raises:
        UsageError: the request cannot be resolved, or no process can be started.
    """
    started = time.monotonic()
    subjects, shown = resolved(request), progress or Progress()
    executor = executor_for(subjects)
    try:
        yield Run(subjects, executor, shown, started, file)
    finally:
        executor.close()
        shown.close()


class Run:
    """One request on its executor: ``over`` runs a plan, then ``report`` gives the report.

    Attributes:
        subjects: the resolved request.
        executor: the executor that runs the cases.
        ledger: what was judged, once a plan has run.
        interrupted: the reason why it stopped early; "" where it did not.
    """

    def __init__(
        self,
        subjects: Subjects,
        executor: Executor,
        progress: Progress,
        started: float,
        file: LedgerFile | None = None,
    ) -> None:
        self.subjects, self.executor = subjects, executor
        self._progress, self._started, self._file = progress, started, file
        seconds = subjects.request.seconds
        self._until = None if seconds is None else started + seconds
        self._barring = Barring(executor)
        self._first_failure: Verdict | None = None
        self._compiling = self._longest = 0.0
        self.interrupted = ""

    def over(
        self,
        planned: Plan,
        halt: Callable[[], str] = lambda: "",
        is_first: Callable[[Job], bool] = lambda job: False,
    ) -> None:
        """Run the jobs of a plan that the ledger's file does not have yet.

        Args:
            planned: the plan.
            halt: called between cases; returns what to stop at, or "".
            is_first: whether a job is run before the others.

        Raises:
            UsageError: no process can be started, the definition cannot be used, or the file is of another run.
        """
        self._plan, request = planned, self.subjects.request
        self._begin(header_of(planned, self.executor, has_file=self._file is not None))
        jobs = sorted(self._missing(), key=lambda job: not is_first(job))

        def reserve() -> float:
            failing = request.seconds is not None and any(True for _ in self.tally.failing())
            return SHARE_TO_SHRINK * (request.seconds or 0.0) if failing else 0.0

        def take(result: CaseResult) -> str:
            self._take(result)
            stops = request.fail_fast and self._first_failure is not None
            return halt() or ("the first failure" if stops else "")

        def wrong(job: Job) -> frozenset[str]:
            return self.tally.wrong_before(job, planned.place(job.kernel, job.case))

        execution = Execution(
            planned, self.executor, self._barring, self._started, self._until, reserve, wrong, self._compiled
        )
        self._stopped = execution.stopped
        self._progress.plan(len(planned.jobs))
        execution.run(jobs, take)
        if execution.ended:
            self.interrupted = f"{execution.ended} after {self.done} of {len(planned.jobs)} cases"
        elif self.done < len(planned.jobs):
            self._tell("time is up")

    @property
    def done(self) -> int:
        """The number of cases that were judged."""
        return len(self._judged)

    def report(self) -> Report:
        """The report of all results so far; no further case is judged. Raises UsageError as ``end`` does."""
        self.end()
        try:
            return report_of(self.ledger)
        except KeyboardInterrupt:  # it judges nothing more
            return report_of(self.ledger)

    def end(self, *, explains: bool = True) -> None:
        """End the ledger; once interrupted, no further case is judged.

        Args:
            explains: whether failing cases are shrunk, and severities that are undecided found.

        Raises:
            UsageError: a file of the target has changed meanwhile.
        """
        try:
            if explains:
                self._explain()
        except KeyboardInterrupt:
            self.interrupted = self.interrupted or "interrupted while the report was made"
            self._explain()
        end = EndRecord(
            time.monotonic() - self._started, self.interrupted, self._stopped, self._compiling, self._longest
        )
        require_unchanged(self.subjects.setup)
        self._add(end)

    def _begin(self, header: Header) -> None:
        """Begin the ledger, with what its file already has of this run."""
        self.ledger = Ledger([Section(header)]) if self._file is None else self._file.begin(header)
        self.tally = tallied(self.ledger.cases.values(), header.owed)
        self._judged = set(self.ledger.cases)
        for record in self.ledger.cases.values():
            self._barring.count(record.kernel, record.ended)

    def _missing(self) -> Iterator[Job]:
        """The jobs of the plan, without what the ledger has."""
        known = self.ledger.cases
        for job in self._plan.jobs:
            record = known.get(name_of(job.kernel, job.case))
            left = tuple(each for each in job.properties if record is None or each not in record.by_property)
            if left:
                yield replace(job, properties=left)

    def _explain(self) -> None:
        """Shrink failing cases, and find severities that are undecided on a GPU."""
        retry = None if self.interrupted else Retry(self.executor, self._barring, self._progress, self._until)
        known = {(each.verdict, each.place) for each in self.ledger.of(SmallerRecord) if each.result is not None}
        smaller, interrupted = minimised(self.subjects, self.tally, faults_of(self.ledger), known, retry)
        self.interrupted = self.interrupted or interrupted
        for record in smaller:
            self._add(record)
        if self.subjects.device == "cuda" and not self.interrupted:
            for each in triaged(self.subjects, self.ledger, self._until):
                self._add(each)

    def _add(self, record: Record) -> None:
        self.ledger.add(record)
        if self._file is not None:
            self._file.add(record)

    def _take(self, result: CaseResult) -> None:
        record = self._record(result)
        self._add(record)
        self.tally.add(record)
        self._judged.add(record.name)
        if self._first_failure is None and any(judged.status in BROKEN for judged in result.results):
            found = (first_failure(self.ledger.header, *each) for each in self.tally.failing())
            self._first_failure = next((each for each in found if self._may_count(each)), None)
            if self._first_failure is not None:
                self._progress.failure(self._first_failure)
        self._tell("")

    def _record(self, result: CaseResult) -> CaseRecord:
        """The record of a result, with what it counts towards."""
        subjects, case = self.subjects, result.case
        place = self._plan.place(result.kernel, case)
        goals: Iterable[str] = ()
        if not subjects.request.inputs and any(each.status in (Status.HOLDS, *BROKEN) for each in result.results):
            goals = sorted(goals_of(subjects.family, subjects.kernels[result.kernel], case))
        marks: Iterable[str] = ()
        if any(each.status is Status.REFUSED for each in result.results):
            layouts = {draw.layout for draw in dict(case.draws).values()} - {"contiguous"}
            ranks = subjects.family.signature.ranks(case.dims)
            sizes = [f"{name}={size}" for name, size in (ranks | dict(case.dims)).items()]
            marks = (f"dtype={case.dtype}", *sizes, *(f"layout={layout}" for layout in sorted(layouts)))
        return CaseRecord.of(result, place, tuple(goals), tuple(marks))

    def _compiled(self, seconds: float, longest: float) -> None:
        """Count compilations ahead of a case: the seconds of all and of the longest."""
        self._compiling += seconds
        self._longest = max(self._longest, longest)

    def _may_count(self, failure: Verdict) -> bool:
        """Whether a failure counts; what fails on a GPU is widened only after the run, and may."""
        kernel = self.subjects.kernels[failure.kernel]
        is_claimed = not failure.about or any(map(kernel.is_claimed, failure.about))
        later = self.subjects.device == "cuda" and failure.severity is Severity.UNDECIDED and is_claimed
        return later or failure.counts(self.subjects.request.fail_on)

    def _tell(self, note: str) -> None:
        properties = len({key.property_name for key, own in self.tally.verdicts.items() if own.statuses})
        self._progress.case(self.done, properties, sum(1 for _ in self.tally.failing()), note)


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


def header_of(plan: Plan, executor: Executor, *, has_file: bool) -> Header:
    """The header of a run's ledger.

    Args:
        plan: the plan.
        executor: what runs it.
        has_file: whether others will read it, who need to know of which files it is.
    """
    subjects, request, device = plan.subjects, plan.subjects.request, plan.subjects.device
    own = provenance(subjects.functions, request.target) if has_file else Provenance({}, {})
    random = subjects.family.random
    notes = [random.words] if random is not None else []
    notes += [note for kernel in subjects.kernels.values() for note in kernel.notes]
    return Header(
        request.target,
        subjects.family.name,
        device,
        request.seed,
        {name: _kernel(plan, kernel) for name, kernel in subjects.kernels.items()},
        {name: _property(prop) for name, prop in subjects.properties.items()},
        plan.owed,
        Counter(f"{job.kernel} in {job.case.dtype}" for job in plan.jobs),
        len(plan.whole),
        plan.digest,
        asked=asked(request),
        held=held(request),
        place=request.family or "",
        part=request.shard,
        goals=dict(plan.expected),
        require=request.require,
        fail_on=request.fail_on,
        notes=(*notes, *fixed(subjects), *excluded(subjects)),
        sizes=sizes_wanted(subjects.family),
        dim=length(subjects.family),
        is_shrunk=is_shrunk(request),
        missing=subjects.missing,
        files=own.files,
        packages=own.packages,
        environment=executor.environment() | _host_environment(request.python, device),
    )


def _host_environment(python: str | None, device: str) -> dict[str, str]:
    """What kernels run on, where that is another Python than this one."""
    if python is None:
        return {}
    found = other_python(python, has_gpus=device == "cuda")
    return {"host": found.words} | ({"gpu": ", ".join(found.gpus)} if found.gpus else {})


def _kernel(plan: Plan, kernel: Kernel) -> LedgerKernel:
    subjects, name = plan.subjects, kernel.name
    request, target = subjects.request, subjects.target(name)
    cases = [job.case for job in plan.whole if job.kernel == name]
    dtypes = list(dict.fromkeys((*plan.dtypes.get(name, ()), *(case.dtype for case in cases))))
    return LedgerKernel(
        target,
        {dtype: kernel.contract(dtype).name for dtype in dtypes},
        tuple(dtype for dtype in dtypes if kernel.declares(dtype)),
        claimed(kernel),
        narrowed(kernel, subjects.family),
        location_of(kernel),
        repeated(request, target, subjects.device),
        subjects.line(name, cases[0]) if request.inputs is not None and cases else "",
        again_saved(request, target, subjects.device),
    )


def _property(prop: Property) -> LedgerProperty:
    return LedgerProperty(prop.statement, prop.rank, prop.kind, prop.cause, prop.derivative, prop.decisive)
