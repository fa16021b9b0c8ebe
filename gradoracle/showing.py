"""Showing: what a command found goes to its views, the terminal or files, and nothing known is lost on the way."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gradoracle import options
from gradoracle.errors import UsageError

if TYPE_CHECKING:
    from gradoracle.verdict import Report

INCONCLUSIVE = 4


def report(views: Sequence[options.Output], runs: Sequence[Callable[[], Report]]) -> int:
    """Run each, show what is known in every view also where one of them fails, and give the exit code."""
    reports: list[Report] = []
    failure: BaseException | None = None
    for one in runs:
        try:
            reports.append(one())
        except (Exception, KeyboardInterrupt) as error:
            known = getattr(error, "report", None)  # a fault of our own may still know a part
            if known is not None:
                known.notes.append("inconclusive: gradoracle failed on some cases; the exit code is then 3")
                reports.append(known)
            failure = error
        if failure is not None or reports[-1].interrupted:
            break
    if reports:
        from gradoracle.report import render

        show(views, lambda view, width, color: render(reports, view, width=width, color=color))
    if failure is None:
        from gradoracle.report import exit_code

        return exit_code(reports)
    if isinstance(failure, KeyboardInterrupt) and reports:
        return max(INCONCLUSIVE if report.exit_code != 1 else 1 for report in reports)
    raise failure


def show(views: Sequence[options.Output], render: Callable[[str, int | None, bool], str]) -> None:
    """Write the views that go to files and print the one that does not; what cannot be written is printed.

    Args:
        views: as ``options.outputs`` has them.
        render: the text of a format, for so many columns, with or without colours.

    Raises:
        UsageError: at the end, where a file could not be written.
    """
    lost: list[str] = []
    for view in sorted(views, key=lambda view: view.path is None):
        width, color = terminal() if view.path is None else (None, False)
        text = render(view.format, width, color)
        if view.path is None:
            say(text)
            continue
        try:
            view.path.write_text(text, encoding="utf-8")
        except OSError as error:
            say(text)
            lost.append(f"--output {view.path} cannot be written: {(error.strerror or str(error)).lower()}")
    if lost:
        raise UsageError(f"{'; '.join(lost)}; its content was printed instead")


def terminal() -> tuple[int | None, bool]:
    """Columns (None: the default) and whether colours may be used, of standard output."""
    if not sys.stdout.isatty():
        return None, False
    color = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return max(80, min(140, shutil.get_terminal_size().columns)), color


def say(text: str) -> None:
    """Print to standard output; where nobody reads it any more, the exit code still says it all."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
