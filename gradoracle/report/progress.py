"""Progress of a run on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from gradoracle.model.verdict import Verdict
from gradoracle.model.wording import counted
from gradoracle.project.request import Progress
from gradoracle.report.shown_fault import headline, tell

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_EVERY = 10.0  # seconds between two lines where there is no terminal


class Lines(Progress):
    """Progress as lines of text, at most one every ten seconds."""

    def __init__(self, stream: TextIO | None = None, noun: str = "cases"):
        self.noun = noun
        self._stream = stream if stream is not None else sys.stderr
        self._total = 0
        self._last = time.monotonic()

    def plan(self, total: int) -> None:
        """The number of cases to run is known."""
        self._total = total

    def case(self, done: int, properties: int, failing: int, note: str) -> None:
        """``done`` cases have run; ``properties`` were judged so far, and ``failing`` verdicts fail."""
        now = time.monotonic()
        if note or done == 1 or now - self._last >= _EVERY:
            self._last = now
            self._say(", ".join([f"{done} of {self._total} {self.noun}", *_counts(properties, failing, note)]))

    def failure(self, verdict: Verdict) -> None:
        """The first failure, as it was found."""
        for line in _in_short(verdict):
            self._say(line)

    def shrinking(self, property_name: str, case: str) -> None:
        """A case that violates this property is being shrunk."""
        self._say(f"looking for a smaller case that violates {property_name}")

    def _say(self, text: str) -> None:
        print(f"gradoracle: {text}", file=self._stream, flush=True)


class Live(Progress):
    """Progress as a bar that disappears when the run is over."""

    def __init__(self, noun: str = "cases") -> None:
        self.noun = noun
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def plan(self, total: int) -> None:
        """The number of cases to run is known."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        if self._bar is None:
            self._bar = Bar(
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

    def case(self, done: int, properties: int, failing: int, note: str) -> None:
        """``done`` cases have run; ``properties`` were judged so far, and ``failing`` verdicts fail."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, description=", ".join(_counts(properties, failing, note)))

    def failure(self, verdict: Verdict) -> None:
        """The first failure, as it was found; the bar goes on below it."""
        if self._bar is not None:
            for line in _in_short(verdict):
                self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def shrinking(self, property_name: str, case: str) -> None:
        """A case that violates this property is being shrunk."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=f"shrinking a case of {property_name}")

    def close(self) -> None:
        """The run is over."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def progress(noun: str = "cases") -> Lines | Live:
    """A bar if standard error is a terminal, else lines; ``noun`` is what is counted."""
    return Live(noun) if sys.stderr.isatty() else Lines(noun=noun)


def _counts(properties: int, failing: int, note: str) -> list[str]:
    counts = [counted(count, noun) for count, noun in ((properties, "property"), (failing, "failure")) if count]
    return [*counts, note] if note else counts


def _in_short(verdict: Verdict) -> list[str]:
    """A failing verdict in a few lines: what fails, where it is worst, the case, and how to replay it."""
    labels = ("case", "crash", "replay", "worst")
    lines = (f"  {label:<8} {text}" for label, text in tell(verdict) if label in labels)
    return [f"first failure: {headline(verdict)}", *lines]
