"""In process: jobs run in this process, unprotected from what a kernel may do to it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from gradoracle.execution import environment
from gradoracle.execution.executor import Result
from gradoracle.execution.process import Work, attempt
from gradoracle.host.lifeline import load


class InProcess:
    """Runs one job after the other. Nothing ends one that hangs.

    Args:
        entry: ``"package.module:function"``; called with the setup before the first job.
        setup: the setup of the jobs.
        work: the result of the entry, if it has been called already.
    """

    in_order = True
    shares_compilations = False

    def __init__(self, entry: str, setup: Any, work: Work | None = None) -> None:
        self._entry, self._setup, self._work = entry, setup, work

    def run(self, jobs: Iterable[Any], until: float = math.inf) -> Iterator[Result]:
        """Run jobs, in order."""
        for job in jobs:
            yield self.run_alone(job)

    def run_alone(self, job: Any) -> Result:
        """Run one job; it has no time limit."""
        if self._work is None:
            self._work = load(self._entry)(self._setup)
        begun = time.monotonic()
        result, _ = attempt(self._work, job, lambda name, limit: None)
        return replace(result, job=job, seconds=time.monotonic() - begun)

    def memory(self) -> tuple[int, str]:
        """Bytes that a case may use: those of this machine."""
        return environment.memory(), "here"

    def environment(self) -> dict[str, str]:
        """This machine."""
        return environment.describe("auto", 1)

    def close(self) -> None:
        """There is nothing to end."""
