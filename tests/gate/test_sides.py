"""A side reports outcomes before it shrinks counterexamples, so that the other side need not wait."""

from __future__ import annotations

import sys
from pathlib import Path

from gate.project import HELPER, KERNEL, Project

from gradoracle.gate.side import Task
from gradoracle.gate.sides import SideProcess
from gradoracle.model.ledger import CaseRecord, EndRecord, SmallerRecord
from gradoracle.model.serialize import to_plain
from gradoracle.model.verdict import Status

RIGHT, WRONG = "(gw * x32).mean(", "(gw * x32).sum("


ORACLE = {"property": "*_matches_the_oracle", "examples": "12", "workers": "0"}


def _side(clone: Project, stage: Path, settings: dict[str, str] = ORACLE, **more: object) -> SideProcess:
    task = Task(KERNEL, dict(settings), **more)  # type: ignore[arg-type]
    return SideProcess(clone.folder, [str(clone.folder), *sys.path], True, {"rmsnorm": task}, stage)


def test_what_fails_is_reported_with_all_cases_before_it_is_shrunk(clone: Project, tmp_path: Path) -> None:
    clone.edit(KERNEL, (RIGHT, WRONG))
    side = _side(clone, tmp_path)
    early = side.news(soon=False)
    assert early is not None and early.ledger is not None, side.answer()
    assert not early.ledger.of(SmallerRecord) and not early.ledger.of(EndRecord)
    last = side.answer()["rmsnorm"]
    assert last.ledger is not None and last.ledger.of(SmallerRecord) and last.is_whole
    assert early.cases == last.cases and len(last.cases) == 12


def test_without_a_failure_there_is_no_news_and_what_measures_is_not_shrunk(clone: Project, tmp_path: Path) -> None:
    side = _side(clone, tmp_path)
    assert side.news(soon=False) is None and side.answer()["rmsnorm"].report is not None
    clone.edit(KERNEL, (RIGHT, WRONG))
    found = _side(clone, tmp_path, properties={}).answer()["rmsnorm"].ledger
    assert found is not None and not found.of(SmallerRecord)


def test_cases_that_come_first_change_the_order_and_nothing_else(clone: Project, tmp_path: Path) -> None:
    clone.edit(KERNEL, (RIGHT, WRONG))
    plain = _side(clone, tmp_path).answer()["rmsnorm"]
    last = list(plain.cases)[-3:]
    other = _side(clone, tmp_path, first=last).answer()["rmsnorm"]
    assert other.ledger is not None and [each.name for each in other.ledger.of(CaseRecord)][:3] == last
    assert other.cases == plain.cases
    assert plain.report is not None and other.report is not None
    for report in (plain.report, other.report):
        report.seconds, report.environment = 0.0, {}
    assert to_plain(other.report) == to_plain(plain.report)


def test_properties_are_judged_on_the_cases_that_are_named_alone(clone: Project, tmp_path: Path) -> None:
    plain = _side(clone, tmp_path, properties={}).answer()["rmsnorm"]
    lines = list(plain.cases)
    asked = {lines[3]: ["vjp_matches_the_oracle"], lines[5]: ["forward_matches_the_oracle"]}
    found = _side(clone, tmp_path, properties=asked, measures=False).answer()["rmsnorm"]
    assert {line: list(case.by_property) for line, case in found.cases.items()} == asked and found.is_whole
    assert all(each in plain.cases[line].results for line, case in found.cases.items() for each in case.results)
    nothing = _side(clone, tmp_path, properties={"case of another tree": ["x"]}, measures=False).answer()
    assert nothing["rmsnorm"].cases == {} and not nothing["rmsnorm"].error


def test_functions_of_the_named_folder_that_ran_are_recorded(clone: Project, tmp_path: Path) -> None:
    found = _side(clone, tmp_path, properties={}, called_in=str(clone.folder)).answer()["rmsnorm"]
    text = (clone.folder / KERNEL).read_text().splitlines()
    names = {
        text[int(line) - 1].strip()
        for case in found.cases.values()
        for file, _, line in (place.rpartition(":") for place in case.called)
        if file == KERNEL
    }
    assert "def my_rmsnorm(x, w):" in names or "@gradoracle.kernel(rmsnorm)" in names
    assert not any("def rmsnorm" in name for name in names)  # the definition is no part of a kernel's calls
    assert any(f"{HELPER}:4" in case.called for case in found.cases.values())
    assert not any(case.called for case in _side(clone, tmp_path, properties={}).answer()["rmsnorm"].cases.values())


def test_a_side_reports_failures_as_it_goes_and_stops_on_request(clone: Project, tmp_path: Path) -> None:
    clone.edit(KERNEL, (RIGHT, WRONG))
    side = _side(clone, tmp_path)
    news = side.news(soon=True)
    assert news is not None
    assert 0 < len(news.cases) < 12 and all(
        any(each.status is Status.VIOLATED for each in case.results) for case in news.cases.values()
    )
    side.stop()
    found = side.answer()["rmsnorm"]
    assert found.report is not None and not found.is_whole and len(found.cases) < 12
    assert "first regression" in found.report.interrupted


def test_a_side_that_is_killed_leaves_nobody_waiting(clone: Project, tmp_path: Path) -> None:
    side = _side(clone, tmp_path)
    side._process.kill()
    assert side.news(soon=True) is None
    assert "SIGKILL" in side.answer()["rmsnorm"].error


def test_a_side_judges_the_compilations_that_a_kernel_names(clone: Project, tmp_path: Path) -> None:
    """Which no case changes, so that a check leaves them out (tests/check/test_pace.py)."""
    text = (clone.folder / KERNEL).read_text()
    named = "my_rmsnorm = dataclasses.replace(my_rmsnorm, extras={'compilations': compilations})\n"
    (clone.folder / KERNEL).write_text(
        f"import dataclasses\n{text}\n\ndef compilations(dtype):\n    return []\n\n\n{named}"
    )
    settings = {"dtype": "float32", "examples": "2", "workers": "0"}
    report = _side(clone, tmp_path, settings).answer()["rmsnorm"].report
    assert report is not None
    (found,) = (each for each in report.verdicts if each.property_name == "shared_memory_fits_each_architecture")
    (reason,) = found.reasons
    assert found.status is Status.NOT_CHECKED and "names no compilation" in reason
    assert not any("left to" in note for note in report.notes)
