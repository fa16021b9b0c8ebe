"""The wording of every view: what it shows of the one example with every kind of content, line by line.

The terminal also has the reports of which nothing is wrong or nothing was checked; ``progress`` is what a run says.

`golden/VIEW.txt` holds the lines. To write the files anew after a change of the wording, and then read their diff:

    WRITE_GOLDEN=1 .venv/bin/pytest -q tests/report/test_golden.py
"""

from __future__ import annotations

import difflib
import io
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from example import CASE, holding, report, unchanged, whole

from gradoracle import __version__
from gradoracle.model.verdict import Report, Status
from gradoracle.report.formats import FORMATS, render
from gradoracle.report.progress import Lines

FOLDER = Path(__file__).parent / "golden"
VIEWS = (*FORMATS, "progress")


def shown(view: str, reports: Sequence[Report]) -> list[str]:
    """The lines of a view that gradoracle words: of the page neither the style nor the pictures, no version."""
    if view == "progress":
        return progressed(reports[0])
    text = render(reports, view, verbose=True).replace(f'"version": "{__version__}"', '"version": "VERSION"')
    if view == "html":
        text = re.sub(r"<style>.*?</style>", "<style>", text, flags=re.DOTALL)
        text = re.sub(r'<svg role="img" (aria-label="[^"]*").*?</svg>', r"<svg \1>", text, flags=re.DOTALL)
    if view == "terminal":
        text += f"in brief\n{render(reports, view)}"
        for made in ([report(holding())], [report()], [unchanged()]):
            text += f"alone\n{render(made, view)}"
    return text.splitlines()


def progressed(made: Report) -> list[str]:
    """The lines of a run without a terminal: its first and its last case, failures, and a smaller case."""
    stream = io.StringIO()
    lines = Lines(stream)
    lines.plan(made.cases_planned)
    lines.case(1, 3, 0, "")
    for status in (Status.VIOLATED, Status.CRASHED):
        lines.failure(next(each for each in made.verdicts if each.status is status))
    lines.case(made.cases_run, 3, 1, "time is up")
    lines.case(made.cases_run, 3, 2, "time is up")
    lines.shrinking("vjp_matches_the_oracle", CASE)
    return stream.getvalue().splitlines()


def changes(view: str, lines: Sequence[str]) -> list[str]:
    """The lines that differ from those of the golden file: ``-`` as they were, ``+`` as they are."""
    golden = (FOLDER / f"{view}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in difflib.ndiff(golden, lines) if line[0] in "-+"] if golden != list(lines) else []


@pytest.mark.parametrize("view", VIEWS)
def test_the_wording_is_that_of_the_golden_file(view: str) -> None:
    lines = shown(view, whole())
    if os.environ.get("WRITE_GOLDEN") == "1":
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{view}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        pytest.skip("written anew, not compared")
    assert changes(view, lines) == []


@pytest.mark.parametrize("view", VIEWS)
def test_a_changed_line_is_noticed(view: str) -> None:
    reports = whole()
    crash = next(each for each in reports[0].verdicts if each.property_name == "hvp_matches_the_oracle")
    assert crash.counterexample is not None
    crash.counterexample = replace(crash.counterexample, message="hvp: killed by signal 6 (aborted)")
    found = changes(view, shown(view, reports))
    assert any(line[0] == "-" and "segmentation fault" in line for line in found)
    assert any(line[0] == "+" and "aborted" in line for line in found)
    assert all(line[0] in "-+" for line in found) and len(found) < 9
