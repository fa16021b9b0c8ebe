"""Formats: the views of a report."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradoracle.model.verdict import Report

# The packages that each format needs, of those that are installed by pip install 'gradoracle[report]' alone. The parser
# of the command line reads this table, so that this module imports nothing that takes time.
FORMATS: Mapping[str, tuple[str, ...]] = {
    "terminal": (),
    "json": (),
    "junit": (),
    "sarif": (),
    "github": (),
    "markdown": (),
    "html": ("jinja2", "matplotlib"),
}


def render(
    reports: Report | Sequence[Report],
    format: str,
    *,
    width: int | None = None,
    color: bool = False,
    verbose: bool = False,
) -> str:
    """One or several reports in one of ``FORMATS``.

    Args:
        reports: the reports of one run; several for ``gradoracle check all``.
        format: one of them.
        width: columns of the terminal format; default 120.
        color: whether the terminal format may use escape sequences.
        verbose: whether the terminal format shows everything of a report with faults; all others always do.

    Raises:
        ValueError: an unknown format.
    """
    if format not in FORMATS:
        raise ValueError(f"format {format!r} is unknown; expected one of {', '.join(FORMATS)}")
    several = list(reports) if isinstance(reports, Sequence) else [reports]
    view = importlib.import_module(f"gradoracle.report.{format}")
    options = {"width": width, "color": color, "verbose": verbose} if format == "terminal" else {}
    text: str = view.render(several, **options)
    return text
