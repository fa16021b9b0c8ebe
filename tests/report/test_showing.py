"""Showing: each view goes where it was asked to, and one that fails takes no other with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradoracle.model.errors import UsageError
from gradoracle.project.outputs import Output
from gradoracle.report import showing


def text_of(view: str, width: int | None, color: bool) -> str:
    if view == "html":
        raise OverflowError("no picture holds that")
    return f"{view} of it\n"


def test_a_view_that_cannot_be_made_is_raised_when_the_others_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    views = [Output("html", tmp_path / "a.html"), Output("json", tmp_path / "a.json"), Output("terminal")]
    with pytest.raises(OverflowError, match="no picture holds that"):
        showing.show(views, text_of)
    assert (tmp_path / "a.json").read_text() == "json of it\n" and not (tmp_path / "a.html").exists()
    assert capsys.readouterr().out == "terminal of it\n"


def test_a_file_that_cannot_be_written_is_printed_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    views = [Output("json", Path("/dev/full")), Output("junit", tmp_path / "a.xml")]
    with pytest.raises(UsageError, match="/dev/full cannot be written: no space left on device"):
        showing.show(views, text_of)
    assert capsys.readouterr().out == "json of it\n" and (tmp_path / "a.xml").read_text() == "junit of it\n"


def test_the_steps_summary_is_written_where_another_view_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def render(_: object, view: str, **__: object) -> str:
        return text_of(view, None, False)

    monkeypatch.setattr("gradoracle.report.formats.render", render)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    with pytest.raises(OverflowError):
        showing.show_reports([Output("html", tmp_path / "a.html"), Output("github")], [])
    assert (tmp_path / "summary.md").read_text() == "markdown of it\n"
    assert capsys.readouterr().out == "github of it\n"
