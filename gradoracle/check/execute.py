"""Execute: sends the jobs of a plan to an executor; each comes back with a result, whatever its kernel did."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from gradoracle.check.crashes import Crashes
from gradoracle.check.judge_case import ENTRY
from gradoracle.check.plan import Plan, Subjects
from gradoracle.execution import device, environment
from gradoracle.execution.dask_pool import DaskPool
from gradoracle.execution.dask_worker import Order
from gradoracle.execution.executor import Executor, Lost, Result, StartupError
from gradoracle.execution.in_process import InProcess
from gradoracle.execution.local_pool import LocalPool
from gradoracle.model.errors import UsageError
from gradoracle.model.job import CaseResult, Job, Trial
from gradoracle.project.provenance import provenance

GRACE = 5.0  # seconds past the time limit of a run after which a kernel call still running is ended
GETTING_READY = "getting ready (worker processes, the definition on its first case)"  # before the first case begins


class Execution:
    """The jobs of a plan on an executor, and their progress.

    Attributes:
        begun: how many jobs were begun.
        ended: why the rest was not begun, other than for lack of time; "" otherwise.
        stopped: by "kernel: call", the seconds of a call that was still running when the time was up.

    Args:
        plan: the plan.
        executor: runs the jobs.
        crashes: handles kernels that end their process.
        started: when the run started, on the monotonic clock.
        until: when to begin no further job; None: never.
        reserve: asked before each job, by how many seconds to stop before ``until``.
        known_wrong: asked before each job, which properties an earlier case has shown to be wrong.
    """

    def __init__(
        self,
        plan: Plan,
        executor: Executor,
        crashes: Crashes,
        started: float,
        until: float | None = None,
        reserve: Callable[[], float] = lambda: 0.0,
        known_wrong: Callable[[Job], frozenset[str]] = lambda _: frozenset(),
    ) -> None:
        self._plan, self._executor, self._crashes = plan, executor, crashes
        self._started, self._until, self._reserve, self._known_wrong = started, until, reserve, known_wrong
        self.begun = 0
        self.ended = ""
        self.stopped: dict[str, float] = {}

    def run(self, jobs: Sequence[Job], take: Callable[[CaseResult], str]) -> None:
        """Run the jobs; stop between cases when the time is up, the user interrupts, or ``take`` says so.

        Args:
            jobs: jobs of the plan, in the order in which to begin them.
            take: called with each result as it comes; returns what to stop at, or "".

        Raises:
            UsageError: no process can be started, or the definition cannot be used.
        """
        until = math.inf if self._until is None else self._until + GRACE
        trial: list[Any] = [] if self._plan.trial is None else [self._plan.trial]
        try:
            for result in self._executor.run(itertools.chain(trial, self._until_late(jobs)), until):
                if result.crash is not None and result.crash.kind == "stopped":
                    self._note_stopped(result)
                elif isinstance(result.job, Trial):
                    if result.value:
                        raise UsageError(result.value)
                elif what := take(self._crashes.settle(self._crashes.current(result))):
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

    def _until_late(self, jobs: Sequence[Job]) -> Iterator[Job]:
        for job in jobs:
            left = None if self._until is None else self._until - time.monotonic() - self._reserve()
            if left is not None and left <= 0:
                return
            self.begun += 1
            yield replace(self._crashes.spare(job), seconds=left, known_wrong=self._known_wrong(job))

    def _note_stopped(self, result: Result) -> None:
        """Note a call that was still running when the time was up."""
        outside = "the definition on its first case" if isinstance(result.job, Trial) else "a case"
        name = f"{result.job.kernel}: {(result.crash and result.crash.phase) or outside}"
        self.stopped[name] = max(self.stopped.get(name, 0.0), result.seconds)


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
        made_of = provenance(subjects.functions, request.target)
        return DaskPool(request.scheduler, Order(ENTRY, setup, request.target, subjects.device, os.getcwd(), made_of))
    if request.workers == 0:
        return InProcess(ENTRY, setup)
    own = device.each(subjects.device)
    count = max(min(32, environment.cores()), len(own)) if request.workers is None else request.workers
    free = environment.memory(free=True) if subjects.device == "cpu" else None  # CUDA maps far more than it holds
    try:
        return LocalPool(ENTRY, setup, count=count, env=own, memory=free)
    except StartupError as error:
        raise UsageError(unstarted(error)) from None
