"""Executor: what runs jobs and says what became of each: this process, a pool of processes here, or a dask cluster."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol


class StartupError(Exception):
    """No child can be started: ``entry(setup)`` raised or died. Holds the child's traceback or its last output."""


class Lost(Exception):
    """What runs the jobs is gone in the middle of a run and does not come back; the message says what."""


@dataclass(frozen=True)
class Crash:
    """How a job ended that did not return.

    Attributes:
        phase: the kernel call that was announced, None where the child was outside of any.
        how: in words, such as "killed by signal 11 (segmentation fault)".
        kind: "time limit", "signal", "memory", "exit", "poisoned", "exception", or "stopped" where the run was over.
        output: the end of what the child printed, with a Python stack where it died of a signal.
    """

    phase: str | None
    how: str
    kind: str
    output: str = ""


@dataclass(frozen=True)
class Result:
    """What became of one job: a value, or a crash, or the traceback of a fault of gradoracle's own; and its seconds."""

    job: Any
    value: Any = None
    crash: Crash | None = None
    error: str = ""
    seconds: float = 0.0


class Executor(Protocol):
    """Runs jobs: ``in_process.InProcess``, ``local_pool.LocalPool`` or ``dask_pool.DaskPool``."""

    @property
    def in_order(self) -> bool:
        """Whether results come in the order of the jobs."""

    def run(self, jobs: Iterable[Any], until: float = math.inf) -> Iterator[Result]:
        """Run jobs, which are pulled as there is room for them, and end those that still run at a time."""

    def run_alone(self, job: Any, limit_factor: float = 1.0) -> Result:
        """Run one job, its time limits multiplied."""

    def memory(self) -> tuple[int, str]:
        """Bytes that a case may need, and where they are, in words."""

    def environment(self) -> dict[str, str]:
        """What jobs run on, by name."""

    def close(self) -> None:
        """End all that was started."""
