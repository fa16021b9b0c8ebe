"""Progress of a run, on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_EVERY = 10.0  # seconds between two lines where there is no terminal


class Lines:
    """Progress as lines of text, at most one in ten seconds."""

    def __init__(self, stream: TextIO | None = None, noun: str = "cases"):
        self.noun = noun
        self._stream = stream if stream is not None else sys.stderr
        self._total = 0
        self._last = time.monotonic()

    def plan(self, total: int) -> None:
        """So many cases are to run."""
        self._total = total

    def case(self, done: int, violated: int, note: str) -> None:
        """So many have run, with so many violated laws so far."""
        now = time.monotonic()
        if note or now - self._last >= _EVERY:
            self._last = now
            self._say(f"{done} of {self._total} {self.noun}{_violations(violated)}{f', {note}' if note else ''}")

    def shrinking(self, law: str, case: str) -> None:
        """A violation of this law is being made smaller."""
        self._say(f"looking for a smaller case that violates {law}")

    def close(self) -> None:
        """The run is over."""

    def _say(self, text: str) -> None:
        print(f"gradoracle: {text}", file=self._stream, flush=True)


class Live:
    """Progress as a bar that leaves nothing behind."""

    def __init__(self, noun: str = "cases") -> None:
        self.noun = noun
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def plan(self, total: int) -> None:
        """So many cases are to run."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        if self._bar is None:
            self._bar = Progress(
                SpinnerColumn(),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn(self.noun),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=total)
            self._bar.start()
        elif self._task is not None:
            self._bar.reset(self._task, total=total)

    def case(self, done: int, violated: int, note: str) -> None:
        """So many have run, with so many violated laws so far."""
        if self._bar is not None and self._task is not None:
            description = ", ".join(part for part in (_violations(violated).removeprefix(", "), note) if part)
            self._bar.update(self._task, completed=done, description=description)

    def shrinking(self, law: str, case: str) -> None:
        """A violation of this law is being made smaller."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=f"shrinking a case of {law}")

    def close(self) -> None:
        """The run is over."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def progress(noun: str = "cases") -> Lines | Live:
    """What suits standard error; ``noun`` is what is counted."""
    return Live(noun) if sys.stderr.isatty() else Lines(noun=noun)


def _violations(violated: int) -> str:
    return f", {violated} violated {'law' if violated == 1 else 'laws'}" if violated else ""
