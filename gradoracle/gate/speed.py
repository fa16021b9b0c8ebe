"""Speed: what a kernel takes beside its base, both timed in turns on one GPU, with the noise of that.

A third process runs the base once more: what it takes beside the first is what identical code shows. Notes only: a time
closes no gate.
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
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from gradoracle.gate.process import program
from gradoracle.gate.side import PROTOCOL, Task
from gradoracle.gate.timing import Timed
from gradoracle.model import serialize
from gradoracle.model.case import parse
from gradoracle.model.comparison import Kind, Line, Weight

ROUNDS = 8
START_SECONDS, SECONDS = 600.0, 120.0  # until a process is ready, kernels compiled, and until it has timed one work
DEVICES = ("cuda",)  # what the interpreter takes says nothing of a kernel
_MODULE = "gradoracle.gate.timing"
Work = tuple[str, str]  # a case with its kernel's name before it, and what is done


class Untimed(Exception):
    """A process that times has ended, or does not answer, in a sentence."""


@dataclass(frozen=True)
class Rounds:
    """Times of one work in milliseconds, a round a place; those of one round were taken one after the other.

    Attributes:
        case: with its kernel's name before it.
        what: is done.
        base, twin, head: of the base, of the base in another process, and of the change.
    """

    case: str
    what: str
    base: list[float] = field(default_factory=list)
    twin: list[float] = field(default_factory=list)
    head: list[float] = field(default_factory=list)

    def line(self) -> Line:
        """What it says: how much longer or less long, unless identical code shows that too."""
        kernel, _, text = self.case.partition(": ")
        ratios, same = _ratios(self.head, self.base), _ratios(self.twin, self.base)
        noise = f"ratios {_range(ratios)}, those of the base beside itself {_range(same)}, {len(ratios)} rounds"
        times = f"{median(self.head):.4g} beside {median(self.base):.4g} ms"
        if ratios[0] > max(1.0, same[-1]) or ratios[-1] < min(1.0, same[0]):
            said = _difference(median(ratios))
        else:
            said = "no other time than the base's"
        dtype = parse(text)[2].dtype
        words = f"{self.what} in {dtype}: {said} ({times}; {noise}) on {text}"
        return Line(Kind.SPEED, Weight.NOTE, words, kernel, "", dtype, text)


def _ratios(times: Sequence[float], base: Sequence[float]) -> list[float]:
    """Round by round, the smallest first."""
    return sorted(t / b if b > 0 else (1.0 if t == 0 else math.inf) for t, b in zip(times, base, strict=True))


def _range(ratios: Sequence[float]) -> str:
    return f"{ratios[0]:.3f} to {ratios[-1]:.3f}"


def _difference(ratio: float) -> str:
    """A ratio in words."""
    if ratio > 2:
        return f"{ratio:.3g} times the base's time"
    percent = 100 * abs(ratio - 1)
    return f"{percent:.2g} % {'more' if ratio > 1 else 'less'} time than the base"


class Timer:
    """A process that times the kernels of one tree; it gets ready on its own, and is waited for when it is asked.

    Args:
        folder: of the project.
        path: where it finds modules.
        task: the target.
        stage: a folder for what it is told.
    """

    def __init__(self, folder: Path, path: Sequence[str], task: Task, stage: Path) -> None:
        own = Path(tempfile.mkdtemp(prefix="timer-", dir=stage))
        self._said = own / "stderr.txt"
        order = own / "order.json"
        order.write_text(json.dumps(serialize.to_plain(Timed(PROTOCOL, str(folder), task))), encoding="utf-8")
        text = f"import sys; sys.path[:] = {list(path)!r}\n{program(_MODULE, 'timing')}"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-c", text, str(order)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, cwd=folder, text=True,
                start_new_session=True,
            )  # fmt: skip

    @cached_property
    def works(self) -> list[Work]:
        """What it can time.

        Raises:
            Untimed: it ended before it was ready, or was not ready in time.
        """
        return [(str(case), str(what)) for case, what in self._ready["works"]]

    @cached_property
    def why(self) -> dict[Work, str]:
        """What it cannot time, with the reason.

        Raises:
            Untimed: as of ``works``.
        """
        return {(str(case), str(what)): str(why) for case, what, why in self._ready["why"]}

    def time(self, work: Work) -> float:
        """Milliseconds of one work.

        Raises:
            Untimed: the process has ended, or takes too long.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # why it ended is said by what it left
            self._process.stdin.write(f"{self.works.index(work)}\n")
            self._process.stdin.flush()
        return float(self._answer(SECONDS, f"{work[1]} on {work[0]}"))

    def close(self) -> None:
        """Kill it with all that it started, where it still runs."""
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
        if not select.select([self._process.stdout], [], [], seconds)[0]:  # a line is there whole or not at all
            raise Untimed(f"{what} took longer than {seconds:g} s")
        if line := self._process.stdout.readline():
            return line
        code = self._process.wait()
        lines = [line.strip() for line in self._said.read_text("utf-8", "replace").splitlines() if line.strip()]
        raise Untimed(lines[-1] if lines and code >= 0 else f"its process ended with exit code {code}")


def measure(base: Timer, twin: Timer, head: Timer, rounds: int = ROUNDS) -> Iterator[Rounds]:
    """Time what all can do, in rounds; who begins takes turns.

    Raises:
        Untimed: a process has ended, or takes too long.
    """
    for work in (each for each in head.works if each in base.works and each in twin.works):
        found = Rounds(*work)
        sides = [(base, found.base), (head, found.head), (twin, found.twin)]
        for number in range(rounds):
            first = number % len(sides)
            for timer, times in sides[first:] + sides[:first]:
                times.append(timer.time(work))
        yield found


def untimed(base: Timer, head: Timer) -> Iterator[str]:
    """What is not timed, and why: it fails on a side, or a side does not have it."""
    for where, one, other in (("the change", head, base), ("the base", base, head)):
        for (case, what), why in one.why.items():
            yield f"{what} on {case} fails in {where}: {why}"
        for case, what in one.works:
            if (case, what) not in other.works and (case, what) not in other.why:
                yield f"{what} on {case} is a problem of {where} alone"
