"""Check: the loop. Cases of one fixed stream go to the workers, what comes back is tallied, violations are shrunk."""

from __future__ import annotations

import fnmatch
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from gradoracle import capacity, device, environment
from gradoracle.case import Case, parse
from gradoracle.cluster import Cluster
from gradoracle.command import command, repeated
from gradoracle.contract import contract
from gradoracle.counterexamples import Counterexamples
from gradoracle.crashes import Crashes
from gradoracle.domain import length
from gradoracle.errors import UsageError
from gradoracle.examine import (
    CaseResult,
    Job,
    LawResult,
    Trial,
    no_such_law,
    require_case,
    sizes_wanted,
    subjects,
)
from gradoracle.family import DTYPES, Family
from gradoracle.jobs import Turns, jobs_of_request, laws_on, setup_of
from gradoracle.kernel import Kernel
from gradoracle.location import location_of
from gradoracle.measurements import Measurements
from gradoracle.remote import Order
from gradoracle.request import Progress, Request, Silent
from gradoracle.saved import saved_line
from gradoracle.sharding import Stream, files_of, packages_of, shard_of
from gradoracle.shortfall import shortfall
from gradoracle.strategies import situations
from gradoracle.symptom import MATCHES
from gradoracle.tally import Key, Tally
from gradoracle.target import family_for
from gradoracle.verdict import BROKEN, Counterexample, Report, Status, Verdict
from gradoracle.worker import Lost, Result, StartupError, Workers

GRACE = 5.0  # seconds past the time of a run at which a kernel call that still runs is ended
GETTING_READY = "getting ready (worker processes, the definition on its first case)"  # before the first case begins
SHARE_TO_SHRINK = 0.25  # of the time of a run is kept for making smaller what fails


class Run:
    """One target being checked: resolved once, with its workers, its tally and its clock."""

    def __init__(self, request: Request, progress: Progress) -> None:
        self.started = time.monotonic()
        self.request, self.progress = request, progress
        self.device = device.choose(request.device, elsewhere=request.scheduler is not None)
        self.setup = setup_of(request, self.device)
        device.prepare(self.device)
        family, self.kernels, laws = subjects(self.setup)
        functions = [family.definition, *(k.call for k in self.kernels.values()), *(law.law for law in laws.values())]
        self.family = family.on(self.device)
        self.laws = {name: law for name, law in laws.items() if fnmatch.fnmatchcase(name, request.property)}
        if not self.laws:
            raise UsageError(no_such_law(self.family, request.property))
        for glob in request.require:
            if not fnmatch.filter(laws, glob):
                raise UsageError(f"--require {glob}: {no_such_law(self.family, glob)}")
        self.dtypes = {name: dtypes_of(request, self.family, kernel) for name, kernel in self.kernels.items()}
        self.tally = Tally((law.name for law in self.laws.values() if law.decisive), self.line)
        self.measurements = Measurements(length(self.family))
        self.situations: dict[str, int] = {}
        self.wanted: dict[str, int] = {}
        self.refusals: dict[str, dict[str, int]] = {}
        self.planned = self.begun = self.done = 0
        self.until = None if request.seconds is None else self.started + request.seconds
        self.trial: Trial | None = None  # of the definition, where the cases are not known to fit it
        self.interrupted = ""
        self.first_failure: Verdict | None = None
        self.stopped: dict[str, float] = {}
        self.seconds_compiling = 0.0
        self.undefined: dict[tuple[str, Case], str] = {}  # what is wrong with the definition, a sentence for each case
        self.first: dict[str, tuple[str, Case]] = {}  # of each situation and message of a refusal
        self.stream: Stream | None = None  # the whole of which a shard is a part
        self.watch: Callable[[CaseResult], None] = lambda result: None  # is told what becomes of each case
        self.halted: Callable[[], str] = self._halted  # at what to stop between cases, "" at nothing
        self.gpus = 1  # over which local processes are spread
        self.workers = self._workers(functions)
        self.crashes = Crashes(self.workers, self.until)

    def over(self, jobs: list[Job], first: Callable[[Job], bool] | None = None) -> None:
        """Run the jobs; stops between cases when the time is up or the user interrupts.

        Where some are to come ``first``, what is made of the results is the same as in the order of the jobs.
        """
        turns, how = None, ""
        if first is not None:
            turns, jobs = Turns(jobs), sorted(jobs, key=lambda job: not first(job))
        self.planned = len(jobs)
        self.progress.plan(len(jobs))
        try:
            until = math.inf if self.until is None else self.until + GRACE
            trial: list[Any] = [] if self.trial is None else [self.trial]
            for result in self.workers.run(itertools.chain(trial, self._until_late(jobs)), until):
                if result.crash is not None and result.crash.kind == "stopped":
                    self._note_stopped(result)
                    continue
                if isinstance(result.job, Trial):
                    if result.value:
                        raise UsageError(result.value)
                    continue
                settled = self.crashes.settle(self.crashes.current(result))
                self.watch(settled)
                for each in [settled] if turns is None else turns.add(settled):
                    self._take(each)
                if what := self.halted():
                    how = f"stopped at {what},"
                    break
        except KeyboardInterrupt:
            how = "interrupted"
        except Lost as error:
            how = f"{error},"
        except StartupError as error:
            raise UsageError(f"no worker process can be started: {str(error).strip().splitlines()[-1]}") from None
        for each in () if turns is None else turns.rest():
            self._take(each)
        if self.planned and not (self.begun or self.stopped or how):
            self.stopped[GETTING_READY] = time.monotonic() - self.started
        if how:
            self.interrupted = f"{how} after {self.done} of {self.planned} cases"
        if self.done < self.planned and not self.interrupted:
            self._tell("time is up")

    def place(self, kernel: str) -> str:
        """The target, with the kernel's name where it has several."""
        target = self.request.target
        return f"{target}:{kernel}" if len(self.kernels) > 1 and ":" not in target else target

    def line(self, kernel: str, case: Case) -> str:
        """A case as one line that replays this target's kernel; for saved tensors, which tensors they are."""
        if self.request.inputs is not None:
            return saved_line(case, self.family, self.request.inputs)
        own = self.request.family
        return case.line(self.place(kernel), self.device, own if own and own != case.family else "")

    def report(self) -> Report:
        """All that is known now."""
        counterexamples = Counterexamples(self).all()
        contracts = {
            dtype: kernel.contract(dtype).name for name, kernel in self.kernels.items() for dtype in self.dtypes[name]
        }
        report = Report(
            self.request.target,
            self.family.name,
            list(self.kernels),
            self.device,
            self.request.seed,
            contracts,
            self._environment(),
            self.verdicts(counterexamples),
            self.situations,
            self.wanted,
            self.planned,
            self.done,
            time.monotonic() - self.started,
            self.refusals,
            [note for kernel in self.kernels.values() for note in kernel.notes],
            self.interrupted,
            self.tally.judged,
            self.tally.alarming,
            {name: place for name, kernel in self.kernels.items() if (place := location_of(kernel)) is not None},
            measurements=self.measurements,
            shard=shard_of(self, counterexamples),
            planned=dict(self.tally.planned),
            judged=dict(self.tally.answered),
            stopped=self.stopped,
            seconds_compiling=self.seconds_compiling,
        )
        unmet = shortfall(
            report.verdicts,
            undecided=self.tally.undecided(),
            require=self.request.require,
            undefined=list(self.undefined.values()),
            cases=self.done,
            sizes=sizes_wanted(self.family),
        )
        report.notes += [f"inconclusive: {sentence}" for sentence in unmet]
        return report

    def verdicts(self, counterexamples: dict[Key, Counterexample]) -> list[Verdict]:
        """The tally's verdicts with what their laws say of themselves."""
        verdicts = self.tally.verdicts(counterexamples)
        for verdict in verdicts:
            verdict.statement, verdict.rank = self.laws[verdict.law].statement, self.laws[verdict.law].rank
            if self.interrupted and "no case of this run applies" in verdict.reasons:
                verdict.reasons = {"the run was interrupted before": 0}
            if verdict.counterexample is not None:
                place, line = self.place(verdict.kernel), verdict.counterexample.case
                if verdict.counterexample.pooled:
                    shown = repeated(self.request, place, self.device, verdict.law)
                else:
                    shown = command(self.request, place, self.device, line, verdict.law)
                verdict.counterexample = replace(verdict.counterexample, command=shown)
        return verdicts

    def memory(self) -> tuple[int, str]:
        """Bytes that a case may need, and where: whatever runs the cases, on a cluster its smallest dask worker."""
        if isinstance(self.workers, Cluster):
            return self.workers.memory, "on the dask worker that has least"
        return capacity.memory(), "here"

    def close(self) -> None:
        """End the worker processes."""
        self.workers.close()
        self.progress.close()

    def _environment(self) -> dict[str, str]:
        """What the run is on: of a cluster what it has, not what this machine does."""
        if isinstance(self.workers, Cluster):
            return {**environment.describe("cpu"), **self.workers.facts}
        return environment.describe("auto", self.gpus)

    def _workers(self, functions: Sequence[Any]) -> Workers | Cluster:
        if self.request.scheduler is not None:
            files = files_of(functions, self.request.target)
            return Cluster(self.request.scheduler, Order(self.setup, os.getcwd(), files, packages_of(functions)))
        count, own = self.request.workers, device.each(self.device)
        if count is None:
            count = max(min(32, environment.cores()), len(own))  # of each GPU at least one
        self.gpus = max(1, min(count, len(own)))
        try:
            free = capacity.memory(free=True) if self.device == "cpu" else None  # CUDA maps far more than it holds
            return Workers("gradoracle.examine:entry", self.setup, count=count, env=own, memory=free)
        except StartupError as error:
            raise UsageError(f"no worker process can be started: {str(error).strip().splitlines()[-1]}") from None

    def _halted(self) -> str:
        return "the first failure" if self.request.fail_fast and self.first_failure is not None else ""

    def _until_late(self, jobs: list[Job]) -> Iterator[Job]:
        for job in jobs:
            left = None if self.until is None else self.until - time.monotonic()
            if left is not None and self.first_failure is not None and self.request.seconds is not None:
                left -= self.request.seconds * SHARE_TO_SHRINK
            if left is not None and left <= 0:
                return
            self.begun += 1
            yield replace(self.crashes.spare(job), seconds=left)

    def _take(self, result: CaseResult) -> None:
        self.tally.add(result)
        for each in result.results:
            self.measurements.add(result.kernel, result.case, each.findings, each.law.endswith(MATCHES))
        self.done += 1
        self.seconds_compiling += result.compiling
        where = (result.kernel, result.case)
        for sentence in sorted({r.reason for r in result.results if r.reason.startswith("the definition of")})[:1]:
            self.undefined[where] = sentence
        refused = [r.reason for r in result.results if r.status is Status.REFUSED]
        if refused:
            self._tabulate(refused[0], result.case)
            self.first.setdefault(refused[0], where)
        decided = any(r.status in (Status.HOLDS, *BROKEN) for r in result.results)
        if decided and not self.request.inputs:
            for name in situations(self.family, self.kernels[result.kernel], result.case):
                self.situations[name] = self.situations.get(name, 0) + 1
                self.first.setdefault(name, where)
        if self.first_failure is None and (failing := next(iter(self.tally.failing()), None)) is not None:
            self._show_first(*failing)
        self._tell("")

    def _show_first(self, key: Key, status: Status, case: Case, result: LawResult) -> None:
        """Show the first failure as it is found; the report has it made smaller."""
        law, kernel, dtype = key
        found = Counterexample(self.line(kernel, case), result.findings, message=result.reason)
        verdict = Verdict(law, kernel, dtype, status, counterexample=found, statement=self.laws[law].statement)
        verdict.cases_violated, verdict.cases_crashed = int(status is Status.VIOLATED), int(status is Status.CRASHED)
        shown = command(self.request, self.place(kernel), self.device, found.case, law)
        verdict.counterexample = replace(found, command=shown)
        self.first_failure = verdict
        self.progress.failure(verdict)

    def _note_stopped(self, result: Result) -> None:
        """A call that still ran when the time was up."""
        outside = "the definition on its first case" if isinstance(result.job, Trial) else "a case"
        name = f"{result.job.kernel}: {(result.crash and result.crash.phase) or outside}"
        self.stopped[name] = max(self.stopped.get(name, 0.0), result.seconds)

    def _tabulate(self, message: str, case: Case) -> None:
        """Count a refusal by dtype, by dims and by layouts, so that a rule behind it shows."""
        table = self.refusals.setdefault(message, {})
        layouts = {draw.layout for draw in dict(case.draws).values()} - {"contiguous"}
        sizes = [f"{name}={size}" for name, size in dict(case.dims).items()]
        for mark in (f"dtype={case.dtype}", *sizes, *(f"layout={layout}" for layout in sorted(layouts))):
            table[mark] = table.get(mark, 0) + 1

    def _tell(self, note: str) -> None:
        properties = len({law for (law, *_), count in self.tally.counts.items() if count.statuses})
        self.progress.case(self.done, properties, sum(1 for _ in self.tally.failing()), note)


def check(request: Request, progress: Progress | None = None) -> Report:
    """Check a target: cases x laws -> verdicts.

    Raises:
        UsageError: the request does not fit (unknown target, dtype, contract, law, no GPU, sizes beyond the memory).
    """
    run = Run(request, progress or Silent())
    try:
        run.over(jobs_of_request(run))
        return known(run)
    finally:
        run.close()


def replay(line: str, progress: Progress | None = None, **fields: Any) -> Report:
    """Judge one case line, as it is, by all its laws (or those of ``property``), as ``gradoracle replay`` does.

    Raises:
        UsageError: the line is malformed, its target cannot be resolved, or it needs more memory than there is.
    """
    try:
        target, device, case = parse(line)
    except ValueError as error:
        raise UsageError(str(error)) from None
    fields.setdefault("device", device or "auto")
    target = target or case.family
    family = family_for(line, target, case.family)
    request = Request(**{"target": target, "family": family, "shrink_seconds": 0.0, **fields})
    run = Run(request, progress or Silent())
    try:
        run.wanted = {}
        for name, kernel in run.kernels.items():
            require_case(case, run.family, kernel, memory=run.memory())
            (laws,) = laws_on(run.laws.values(), kernel, [case])
            run.tally.plan(name, case)
            run.over([Job(name, case, laws, presets=True, formulas=True)])
        return known(run)
    finally:
        run.close()


def known(run: Run) -> Report:
    """A run's report; interrupted while it is made, it is made of what is known, without judging further cases."""
    try:
        return run.report()
    except KeyboardInterrupt:
        run.interrupted = run.interrupted or "interrupted while the report was made"
        return run.report()


def dtypes_of(request: Request, family: Family, kernel: Kernel) -> tuple[str, ...]:
    """The dtypes that a kernel is checked in.

    Raises:
        UsageError: an unknown dtype, none that the kernel supports, or a contract that does not fit one.
    """
    asked = request.dtypes or family.dtypes
    unknown = [dtype for dtype in asked if dtype not in DTYPES]
    if unknown:
        raise UsageError(f"--dtype {','.join(unknown)} is unknown; wanted some of {', '.join(DTYPES)}")
    supported = kernel.dtypes or DTYPES
    chosen = tuple(dtype for dtype in asked if dtype in supported)
    if not chosen:
        raise UsageError(
            f"{kernel.name} supports {', '.join(supported)}, none of which is in --dtype {','.join(asked)}"
        )
    for dtype, preset in request.contracts.items():
        try:
            contract(preset, dtype)
        except ValueError as error:
            raise UsageError(f"--contract {dtype}={preset}: {error}") from None
    return chosen
