"""The view of workflow commands: one line each whatever the text, on the kernel's line; and the step's summary."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from example import everything, holding, report, violated

from gradoracle.cli.outcome import run_and_show
from gradoracle.model.location import Location
from gradoracle.model.verdict import Report
from gradoracle.project.outputs import Output
from gradoracle.report import showing
from gradoracle.report.formats import render


def commands(made: Report) -> list[str]:
    return render([made], "github").splitlines()


def test_a_fault_is_an_error_on_the_kernels_line() -> None:
    made = report(violated(), locations={"triton_sdpa": Location("kernels/a,b.py", 12)})
    (line,) = commands(made)
    assert line.startswith("::error ") and "file=kernels/a%2Cb.py,line=12::" in line


def test_without_a_file_there_is_a_title_alone() -> None:
    (line,) = commands(report(violated()))
    assert "file=" not in line.partition("::")[2].partition("::")[0]


def test_a_green_run_is_a_notice_and_an_empty_one_an_error() -> None:
    (green,), (empty,) = commands(report(holding())), commands(report())
    assert green.startswith("::notice title=sdpa%3A ") and "(exit code 0)::1 property" in green
    assert empty == f"::error title=sdpa%3A inconclusive::{'; '.join(report().inconclusive())}"


def test_no_text_starts_a_command_of_its_own() -> None:
    made = everything()
    made.target = "a\n::set-output name=x::y\r\n% ::"
    made.verdicts[1].statement = "100 %\n::stop-commands::token\n"
    lines = commands(made)
    assert len(lines) >= 3 and all(line.startswith(("::error title=", "::notice title=")) for line in lines)
    assert "100 %25%0A::stop-commands" in "".join(lines)


def test_the_step_has_a_summary_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    made = report(violated())
    assert run_and_show([Output("github", tmp_path / "log")], [lambda: made]) == 1
    assert summary.read_text() == "before\n" + render([made], "markdown")
    assert run_and_show([Output("json", tmp_path / "json")], [lambda: made]) == 1
    assert summary.read_text() == "before\n" + render([made], "markdown")


def test_a_summary_that_cannot_be_written_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "none" / "summary.md"))
    assert run_and_show([Output("github", tmp_path / "log")], [lambda: report(holding())]) == 0
    said = capsys.readouterr().err
    assert "step's summary" in said and "no such file" in said


def test_a_file_is_written_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    showing.write(path, "first")
    path.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    showing.write(link, "second")
    assert path.read_text() == "second" and link.is_symlink() and path.stat().st_mode & 0o777 == 0o640

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        showing.write(path, "third")
    assert path.read_text() == "second" and sorted(p.name for p in tmp_path.iterdir()) == ["link.json", "report.json"]


def test_a_file_in_a_folder_that_takes_no_new_ones_is_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(**fields: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(showing.tempfile, "mkstemp", refuse)
    path = tmp_path / "report.json"
    path.write_text("first")
    showing.write(path, "second")
    assert path.read_text() == "second"
