"""Speed: what a kernel takes beside its base, both timed in turns on one GPU, with the noise of that.

Notes only: a time closes no gate.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from gradoracle import plain
from gradoracle.case import parse
from gradoracle.comparison import Kind, Line, Weight
from gradoracle.gate.process import program
from gradoracle.gate.side import PROTOCOL, Task
from gradoracle.gate.timing import Timed

ROUNDS = 8  # of both sides; the probability that the true median ratio is outside all of them is 2 / 2^8
_MODULE = "gradoracle.gate.timing"


class Untimed(Exception):
    """A process that times has ended, in a sentence."""


@dataclass(frozen=True)
class Pairs:
    """Times of one work in milliseconds, in rounds.

    Attributes:
        case: with its kernel's name before it.
        what: is done.
        base, head: a time a round; those of one round were taken one after the other.
    """

    case: str
    what: str
    base: list[float] = field(default_factory=list)
    head: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """The change's time over the base's, round by round, smallest first."""
        return sorted(h / b for b, h in zip(self.base, self.head, strict=True))

    def line(self) -> Line:
        """What it says: how many times the base's time, between which ratios, and whether that is more than noise."""
        kernel, _, text = self.case.partition(": ")
        ratios, middle = self.ratios, median(self.ratios)
        if ratios[0] <= 1 <= ratios[-1]:
            said = "as long as the base, within the noise"
        else:
            said = f"{middle:.3g} times as long as the base" if middle > 1 else f"{1 / middle:.3g} times sooner"
        noise = f"ratios {ratios[0]:.3f} to {ratios[-1]:.3f} in {len(ratios)} rounds"
        times = f"{_shown(median(self.head))} beside {_shown(median(self.base))} ms"
        dtype = parse(text)[2].dtype
        words = f"{self.what} in {dtype}: {said} ({times}; {noise}) on {text}"
        return Line(Kind.SPEED, Weight.NOTE, words, kernel, "", dtype, text)


class Timer:
    """A process that times the kernels of one tree.

    Args:
        folder: of the project.
        path: where it finds modules.
        task: the target.
        stage: a folder for what it is told.

    Raises:
        Untimed: it ended before it was ready.
    """

    def __init__(self, folder: Path, path: Sequence[str], task: Task, stage: Path) -> None:
        own = Path(tempfile.mkdtemp(prefix="timer-", dir=stage))
        self._said = own / "stderr.txt"
        order = own / "order.json"
        order.write_text(json.dumps(plain.to_plain(Timed(PROTOCOL, str(folder), task))), encoding="utf-8")
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [*program(_MODULE, path), str(order)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, cwd=folder, text=True,
            )  # fmt: skip
        try:
            first = json.loads(self._answer())
        except BaseException:
            self.end()
            raise
        self.works = [(str(case), str(what)) for case, what in first["works"]]
        self.why: dict[str, str] = first["why"]

    def time(self, work: tuple[str, str]) -> float:
        """Milliseconds of one work.

        Raises:
            Untimed: the process has ended.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # why it ended is said by what it left
            self._process.stdin.write(f"{self.works.index(work)}\n")
            self._process.stdin.flush()
        return float(self._answer())

    def end(self) -> None:
        """Kill it, where it still runs."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return line
        code = self._process.wait()
        lines = [line.strip() for line in self._said.read_text("utf-8", "replace").splitlines() if line.strip()]
        raise Untimed(lines[-1] if lines and code >= 0 else f"its process ended with exit code {code}")


def measure(base: Timer, head: Timer, rounds: int = ROUNDS) -> Iterator[Pairs]:
    """Time what both sides can do, in rounds; who begins takes turns.

    Raises:
        Untimed: a process has ended.
    """
    for work in (each for each in head.works if each in base.works):
        pairs = Pairs(*work)
        for each in range(rounds):
            for timer, times in _turn([(base, pairs.base), (head, pairs.head)], each):
                times.append(timer.time(work))
        yield pairs


def _turn(sides: list[tuple[Timer, list[float]]], number: int) -> list[tuple[Timer, list[float]]]:
    return sides if number % 2 == 0 else sides[::-1]


def _shown(milliseconds: float) -> str:
    return f"{milliseconds:.4g}"
