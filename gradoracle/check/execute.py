"""Execute: sends the jobs of a plan to an executor; each comes back with a result, whatever its kernel did."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from gradoracle.check.barring import Barring
from gradoracle.check.plan import Plan, Subjects
from gradoracle.check.schedule import Schedule
from gradoracle.check.worker import ENTRY, ENTRY_OF_ONE_PROCESS
from gradoracle.execution import device, environment
from gradoracle.execution.executor import Executor, Lost, Result, StartupError
from gradoracle.execution.in_process import InProcess
from gradoracle.execution.local_pool import LocalPool
from gradoracle.host.compiling import COMPILING
from gradoracle.model.errors import UsageError
from gradoracle.model.job import CaseResult, Compilation, DefinitionJob, Job, Rehearsal
from gradoracle.project.provenance import provenance

GRACE = 5.0  # seconds past the time limit of a run after which a kernel call still running is ended
GETTING_READY = "getting ready (worker processes, the definition on its first case)"  # before the first case begins


class Execution:
    """The jobs of a plan on an executor, and their progress.

    Attributes:
        begun: the number of jobs that were begun.
        ended: the reason why the rest was not begun, other than lack of time; "" otherwise.
        stopped: the seconds of what was still running when the time was up, by "kernel: call" or "compiling KERNEL".

    Args:
        plan: the plan.
        executor: the executor that runs the jobs.
        barring: counts calls that end their process.
        started: the start of the run, on the monotonic clock.
        until: the time after which no job is begun; None: no limit.
        reserve: a function, called before each job: by how many seconds to stop before ``until``.
        known_wrong: a function, called before each job: the properties that an earlier case has shown to be wrong.
        compiled: called with the seconds of each compilation that is made ahead of a case: of all, and of the longest.
    """

    def __init__(
        self,
        plan: Plan,
        executor: Executor,
        barring: Barring,
        started: float,
        until: float | None = None,
        reserve: Callable[[], float] = lambda: 0.0,
        known_wrong: Callable[[Job], frozenset[str]] = lambda _: frozenset(),
        compiled: Callable[[float, float], None] = lambda seconds, longest: None,
    ) -> None:
        self._plan, self._executor, self._barring = plan, executor, barring
        self._started, self._until, self._reserve, self._known_wrong = started, until, reserve, known_wrong
        self._compiled = compiled
        self.begun = 0
        self.ended = ""
        self.stopped: dict[str, float] = {}

    def run(self, jobs: Sequence[Job], take: Callable[[CaseResult], str]) -> None:
        """Run the jobs; stop between cases when the time is up, the user interrupts, or ``take`` says so.

        On a GPU a case begins once its kernels are compiled (``Schedule``): later than a case behind it, if need be.

        Args:
            jobs: jobs of the plan, in the order in which to begin them.
            take: a function, called with each result as it comes; returns what to stop at, or "".

        Raises:
            UsageError: no process can be started, or the definition cannot be used.
        """
        until = math.inf if self._until is None else self._until + GRACE
        trial: list[Any] = [] if self._plan.trial is None else [self._plan.trial]
        schedule = Schedule(jobs, self._compiles_ahead)
        try:
            for result in self._executor.run(itertools.chain(trial, self._until_late(schedule)), until):
                if result.crash is not None and result.crash.kind == "stopped":
                    self._note_stopped(result)
                elif schedule.took(result):
                    if isinstance(result.value, float):
                        self._compiled(result.value, result.value)
                elif isinstance(result.job, DefinitionJob):
                    if result.value:
                        raise UsageError(result.value)
                elif what := take(self._barring.settle(result)):
                    self.ended = f"stopped at {what},"
                    break
        except KeyboardInterrupt:
            self.ended = "interrupted"
        except Lost as error:
            self.ended = f"{error},"
        except StartupError as error:
            raise UsageError(unstarted(error)) from None
        if jobs and not (self.begun or self.stopped or self.ended):
            self.stopped[GETTING_READY] = time.monotonic() - self._started

    def _compiles_ahead(self, job: Job) -> bool:
        """Whether the compilations of a job are made ahead: those of shipped kernels, whose calls can be rehearsed."""
        subjects = self._plan.subjects
        shared = subjects.device == "cuda" and self._executor.shares_compilations
        return shared and not subjects.kernels[job.kernel].outside

    def _until_late(self, schedule: Schedule) -> Iterator[Any]:
        for job in schedule:
            left = None if self._until is None else self._until - time.monotonic() - self._reserve()
            if left is not None and left <= 0:
                return
            if isinstance(job, Job):
                self.begun += 1
                job = replace(self._barring.spare(job), seconds=left, known_wrong=self._known_wrong(job))
            yield job

    def _note_stopped(self, result: Result) -> None:
        """Note a call or compilation that was still running when the time was up; each compilation once."""
        assert result.crash is not None
        phase, seconds = result.crash.phase, result.seconds
        if isinstance(result.job, Rehearsal):
            return
        if isinstance(result.job, Compilation):
            name = result.job.phase
        elif phase is not None and COMPILING in phase:  # for whichever call, in whichever process
            name, seconds = COMPILING.lstrip(", ") + phase.partition(COMPILING)[2], result.crash.seconds
        else:
            outside = "the definition on its first case" if isinstance(result.job, DefinitionJob) else "a case"
            name = f"{result.job.kernel}: {phase or outside}"
        self.stopped[name] = max(self.stopped.get(name, 0.0), seconds)


def unstarted(error: StartupError) -> str:
    """Why no process could be started, as a sentence."""
    return f"no worker process can be started: {error.sentence}"


def executor_for(subjects: Subjects) -> Executor:
    """The executor that a request asks for: this process, local worker processes, or a dask cluster.

    Raises:
        UsageError: no process can be started, or the cluster does not fit.
    """
    request, setup = subjects.request, subjects.setup
    if request.scheduler is not None:
        if find_spec("distributed") is None:
            lacking = "distributed is not installed: needed for --scheduler"
            raise UsageError(f"{lacking}, by pip install 'gradoracle[cluster]'")
        from gradoracle.execution.dask_pool import DaskPool

        elsewhere = replace(setup, sources={})  # files have other paths there
        return DaskPool(request.scheduler, ENTRY, elsewhere, provenance(subjects.functions, request.target))
    if request.workers == 0:
        return InProcess(ENTRY if request.apart else ENTRY_OF_ONE_PROCESS, setup)
    own = device.each(subjects.device, request.python)
    count = max(min(32, environment.cores()), len(own)) if request.workers is None else request.workers
    free = environment.memory(free=True) if subjects.device == "cpu" else None  # CUDA maps far more than it holds
    try:
        return LocalPool(ENTRY, setup, count=count, env=own, memory=free)
    except StartupError as error:
        raise UsageError(unstarted(error)) from None
