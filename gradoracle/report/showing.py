"""Showing: the reports of a command go to its views, the terminal or files."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gradoracle.model.errors import UsageError, tell, why
from gradoracle.model.files import write
from gradoracle.project.outputs import Output

if TYPE_CHECKING:
    from gradoracle.model.verdict import Report


def show_reports(views: Sequence[Output], reports: Sequence[Report], verbose: bool = False) -> None:
    """Show reports in every view; with a github view, also in the summary of the step.

    Args:
        views: the result of ``project.outputs``.
        reports: the reports of one run.
        verbose: whether the terminal view shows everything of a report with faults.

    Raises:
        UsageError: at the end, if a file could not be written.
    """
    from gradoracle.report.formats import render

    try:
        show(views, lambda view, width, color: render(reports, view, width=width, color=color, verbose=verbose))
    finally:
        if any(view.format == "github" for view in views):
            summarise(render(reports, "markdown"))
        if errors := [verdict for report in reports for verdict in report.errors]:
            shown = [
                f"{v.property_name}, {v.dtype}, {c.case}\n{c.trace}\n"
                for v in errors
                if (c := v.counterexample) is not None
            ]
            properties = ", ".join(dict.fromkeys(verdict.property_name for verdict in errors))
            sys.stderr.write(f"gradoracle: internal error in {properties}; {keep_trace(''.join(shown))}\n")


def show(views: Sequence[Output], render: Callable[[str, int | None, bool], str]) -> None:
    """Write the views that go to files and print the one that does not; what cannot be written is printed too.

    Args:
        views: the result of ``project.outputs``.
        render: returns the text of (format, columns, whether in colour).

    Raises:
        UsageError: at the end, if a file could not be written.
        Exception: at the end, what the first view that failed raised.
    """
    lost: list[str] = []
    fault: Exception | None = None
    for view in sorted(views, key=lambda view: view.path is None):
        width, color = terminal() if view.path is None else (None, False)
        try:
            text = render(view.format, width, color)
        except Exception as error:  # the other views are still shown
            fault = fault or error
            continue
        if view.path is None:
            say(text)
            continue
        try:
            write(view.path, text)
        except OSError as error:
            say(text)
            lost.append(f"--output {view.path} cannot be written: {why(error)}")
    if fault is not None:
        raise fault
    if lost:
        raise UsageError(f"{'; '.join(lost)}; its content is printed instead")


def summarise(text: str) -> None:
    """Append a text to the summary of the step, in GitHub Actions."""
    file = os.environ.get("GITHUB_STEP_SUMMARY")
    if not file:
        return
    try:
        with open(file, "a", encoding="utf-8") as summary:
            summary.write(text)
    except OSError as error:
        sys.stderr.write(f"gradoracle: the step's summary cannot be written: {why(error)}\n")


def terminal() -> tuple[int | None, bool]:
    """The columns of standard output (None: the default), and whether it takes colours."""
    if not sys.stdout.isatty():
        return None, False
    color = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return max(80, min(140, shutil.get_terminal_size().columns)), color


def keep_trace(text: str) -> str:
    """Write the traceback of an internal error to a file, or print it with GRADORACLE_TRACEBACK=1; return where."""
    if os.environ.get("GRADORACLE_TRACEBACK") == "1":
        sys.stderr.write(f"{text}\n")
        return "the traceback is above"
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(prefix="gradoracle-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return f"the traceback is in {name}"
    return "set GRADORACLE_TRACEBACK=1 to see the traceback"


def say(text: str) -> None:
    """Print to standard output; if its reader is gone, the exit code still tells the outcome."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def fail(text: str, code: int) -> int:
    """Print an error message and return the exit code."""
    tell(text)
    return code
