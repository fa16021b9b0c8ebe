"""Speed: the time of a kernel compared with its base's, both timed alternately on one GPU, with the noise.

A third process runs the base once more, to show by how much the times of identical code differ. A time is a note: it
never fails the gate.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from gradoracle.gate import timing
from gradoracle.gate.side import PROTOCOL, Order, Task
from gradoracle.gate.side_process import last_line, program, write_order
from gradoracle.gate.timing import Work
from gradoracle.model.case import parse
from gradoracle.model.comparison import Kind, Line, Weight

ROUNDS = 8
START_SECONDS, SECONDS = 600.0, 120.0  # until a process is ready, kernels compiled, and until it has timed one work
DEVICES = ("cuda",)  # the interpreter's time says nothing about a kernel


class Untimed(Exception):
    """A process that times has ended or does not answer; one sentence."""


@dataclass(frozen=True)
class Rounds:
    """Times of one work in milliseconds, by round; those of one round were taken one after the other.

    Attributes:
        work: kernel, case and what is timed.
        base, twin, head: of the base, of the base in another process, and of the change.
    """

    work: Work
    base: list[float] = field(default_factory=list)
    twin: list[float] = field(default_factory=list)
    head: list[float] = field(default_factory=list)

    def line(self) -> Line:
        """How much slower or faster the change is, unless identical code differs as much."""
        kernel, case, what = self.work
        ratios, same = _ratios(self.head, self.base), _ratios(self.twin, self.base)
        noise = f"ratios {_range(ratios)}, base against itself {_range(same)}, {len(ratios)} rounds"
        times = f"{median(self.head):.4g} ms, the base {median(self.base):.4g} ms"
        if ratios[0] > max(1.0, same[-1]) or ratios[-1] < min(1.0, same[0]):
            difference = _difference(median(ratios))
        else:
            difference = "no measurable difference from the base"
        dtype = parse(case)[2].dtype
        text = f"{what} in {dtype}: {difference} ({times}; {noise}) on {case}"
        return Line(Kind.SPEED, Weight.NOTE, text, kernel, "", dtype, case)


def _ratios(times: Sequence[float], base: Sequence[float]) -> list[float]:
    """By round, the smallest first."""
    return sorted(t / b if b > 0 else (1.0 if t == 0 else math.inf) for t, b in zip(times, base, strict=True))


def _range(ratios: Sequence[float]) -> str:
    return f"{ratios[0]:.3f} to {ratios[-1]:.3f}"


def _difference(ratio: float) -> str:
    if ratio > 2:
        return f"{ratio:.3g} times the base's time"
    percent = 100 * abs(ratio - 1)
    return f"{percent:.2g} % {'more' if ratio > 1 else 'less'} time than the base"


class Timer:
    """A process that times the kernels of one tree. It prepares on its own; asking it waits until it is ready.

    Args:
        folder: of the project.
        path: its search path of modules.
        task: the target.
        stage: a folder for the files that are exchanged.
    """

    def __init__(self, folder: Path, path: Sequence[str], task: Task, stage: Path) -> None:
        order, self._errors = write_order(stage, Order(PROTOCOL, {task.target: task}))
        text = f"import sys; sys.path[:] = {list(path)!r}\n{program(timing.__name__, 'timing')}"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", text, str(order)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=folder, text=True,
                start_new_session=True,
            )  # fmt: skip

    @cached_property
    def works(self) -> list[Work]:
        """What it can time.

        Raises:
            Untimed: it ended before it was ready, or was not ready in time.
        """
        return [(kernel, case, what) for kernel, case, what in self._ready["works"]]

    @cached_property
    def why(self) -> dict[Work, str]:
        """What it cannot time, with the reason. Raises as ``works`` does."""
        return {(kernel, case, what): why for kernel, case, what, why in self._ready["why"]}

    def time(self, work: Work) -> float:
        """Milliseconds of one work.

        Raises:
            Untimed: the process has ended, or takes too long.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its standard error has the reason
            self._process.stdin.write(f"{self.works.index(work)}\n")
            self._process.stdin.flush()
        return float(self._answer(SECONDS, _described(work)))

    def close(self) -> None:
        """Kill it, with all processes that it started, if it still runs."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    @cached_property
    def _ready(self) -> Any:
        return json.loads(self._answer(START_SECONDS, "getting ready"))

    def _answer(self, seconds: float, what: str) -> str:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:  # a line comes whole or not at all
            raise Untimed(f"{what} took longer than {seconds:g} s")
        if line := self._process.stdout.readline():
            return line
        code = self._process.wait()
        why = last_line(self._errors) if code >= 0 else ""
        raise Untimed(why or f"its process ended with exit code {code}")


def measure(base: Timer, twin: Timer, head: Timer, rounds: int = ROUNDS) -> Iterator[Rounds]:
    """Time what all three can do, in rounds; who begins a round takes turns.

    Raises:
        Untimed: a process has ended, or takes too long.
    """
    for work in (each for each in head.works if each in base.works and each in twin.works):
        found = Rounds(work)
        sides = [(base, found.base), (head, found.head), (twin, found.twin)]
        for number in range(rounds):
            first = number % len(sides)
            for timer, times in sides[first:] + sides[:first]:
                times.append(timer.time(work))
        yield found


def untimed(base: Timer, head: Timer) -> Iterator[str]:
    """What is not timed, and why: it fails on a side, or only one side has it."""
    for where, one, other in (("the change", head, base), ("the base", base, head)):
        for work, why in one.why.items():
            yield f"{_described(work)} fails in {where}: {why}"
        for work in one.works:
            if work not in other.works and work not in other.why:
                yield f"{_described(work)} exists only in {where}"


def _described(work: Work) -> str:
    kernel, case, what = work
    return f"{what} on {kernel}: {case}"
