"""Executor: runs jobs and reports what became of each, in this process, in a local pool of processes or on dask."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol


class StartupError(Exception):
    """No worker process can be started: ``entry(setup)`` raised or the process died.

    The message is the child's traceback or its last output; ``sentence`` says in one line what happened, and ``kind``
    what was raised there, if anything was.
    """

    def __init__(self, text: str, sentence: str, kind: str = "") -> None:
        self.sentence, self.kind = sentence, kind
        super().__init__(text)


class Lost(Exception):
    """What runs the jobs was lost during a run and does not come back; the message names it."""


LATER: Any = object()
"""Among jobs: no job now; ask again once a running job has ended. A job must be running."""


@dataclass(frozen=True)
class Crash:
    """How a job ended that did not return.

    Attributes:
        phase: the kernel call that was announced; None outside of any.
        how: the end in words, such as "killed by signal 11 (segmentation fault)".
        kind: "time limit", "signal", "memory", "exit", "exception", or "stopped" when the run was over.
        output: the end of what the child printed, with a Python stack if it died of a signal.
        seconds: the time of the phase, if it was stopped.
    """

    phase: str | None
    how: str
    kind: str
    output: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Result:
    """What became of one job.

    Attributes:
        job: the job.
        value: its return value.
        crash: the end by the kernel.
        error: the traceback of an error of gradoracle's own.
        sentence: the error in one line.
        seconds: its time.
    """

    job: Any
    value: Any = None
    crash: Crash | None = None
    error: str = ""
    sentence: str = ""
    seconds: float = 0.0


class Executor(Protocol):
    """Runs jobs: ``in_process.InProcess``, ``local_pool.LocalPool`` or ``dask_pool.DaskPool``."""

    @property
    def in_order(self) -> bool:
        """Whether results come in the order of the jobs."""

    @property
    def shares_compilations(self) -> bool:
        """Whether jobs run side by side in processes that find each other's compilations, and may be ``LATER``."""

    def run(self, jobs: Iterable[Any], until: float = math.inf) -> Iterator[Result]:
        """Run jobs, pulled as there is room for them; what still runs at ``until`` (monotonic clock) is stopped."""

    def run_alone(self, job: Any) -> Result:
        """Run one job while no other runs."""

    def memory(self) -> tuple[int, str]:
        """Bytes that a case may use, and in words where they are."""

    def environment(self) -> dict[str, str]:
        """What jobs run on, by name."""

    def close(self) -> None:
        """End everything that was started."""
