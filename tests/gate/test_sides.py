"""A side tells how cases stand before it has made those that fail smaller, so that the other side need not wait."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from gate.project import KERNEL, Project

from gradoracle.gate.process import Side
from gradoracle.gate.side import Task

RIGHT, WRONG = "(gw * x32).mean(", "(gw * x32).sum("


def _side(clone: Project, stage: Path, **more: object) -> Side:
    task = Task(KERNEL, {"property": "*_matches_the_oracle", "examples": "12", "workers": "0"}, **more)  # type: ignore[arg-type]
    return Side(clone.folder, [str(clone.folder), *sys.path], True, {"rmsnorm": task}, stage)


def test_what_fails_is_told_with_all_cases_and_before_the_report(clone: Project, tmp_path: Path) -> None:
    clone.edit(KERNEL, (RIGHT, WRONG))
    side = _side(clone, tmp_path)
    early = side.news()
    assert early is not None, side.answer()
    last = side.answer().standings["rmsnorm"]
    assert last.report is not None and len(last.cases) == 12
    assert early.standings["rmsnorm"] == replace(last, report=None)


def test_where_nothing_fails_or_no_report_is_wanted_there_is_the_answer_alone(clone: Project, tmp_path: Path) -> None:
    side = _side(clone, tmp_path)
    assert side.news() is None and side.answer().standings["rmsnorm"].report is not None
    clone.edit(KERNEL, (RIGHT, WRONG))
    side = _side(clone, tmp_path, laws={})
    assert side.news() is None and side.answer().standings["rmsnorm"].report is None


def test_a_side_that_is_killed_leaves_nobody_waiting(clone: Project, tmp_path: Path) -> None:
    side = _side(clone, tmp_path)
    side._process.kill()
    assert side.news() is None
    assert "SIGKILL" in side.answer().error
