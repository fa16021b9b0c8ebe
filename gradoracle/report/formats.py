"""Formats: the views of a report, and the exit code of several reports."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from gradoracle.model.verdict import Report

FORMATS = ("terminal", "json", "junit", "sarif", "github", "markdown", "html")


def render(reports: Report | Sequence[Report], format: str, *, width: int | None = None, color: bool = False) -> str:
    """One or several reports in one of ``FORMATS``.

    Args:
        reports: of one run; several for ``gradoracle check all``.
        format: one of them.
        width: columns of the terminal format; default 120.
        color: whether the terminal format may use escape sequences.

    Raises:
        ValueError: an unknown format.
    """
    several = [reports] if isinstance(reports, Report) else list(reports)
    if format not in FORMATS:
        raise ValueError(f"format {format!r} is unknown; expected one of {', '.join(FORMATS)}")
    view = importlib.import_module(f"gradoracle.report.{format}")
    text: str = view.render(several, width=width, color=color) if format == "terminal" else view.render(several)
    return text


def exit_code(reports: Sequence[Report]) -> int:
    """The exit code of several reports: the first of 1 violated, 3 error, 4 inconclusive (or no report), 0."""
    codes = {report.exit_code for report in reports}
    return next((code for code in (1, 3, 4) if code in codes), 0 if codes else 4)
