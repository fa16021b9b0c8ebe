"""Progress: lines where there is no terminal, a bar where there is; neither touches standard output."""

from __future__ import annotations

import io
import re
import sys

import pytest

from gradoracle.report import progress as module
from gradoracle.report.progress import Lines, Live, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_come_now_and_then_and_say_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    lines = Lines(stream)
    lines.plan(30)
    for done in range(1, 31):
        clock[0] += 1.0
        lines.case(done, 3, done // 10, "time is up" if done == 25 else "")
    lines.shrinking("vjp_matches_the_oracle", "case:1")
    lines.close()
    said = stream.getvalue().splitlines()
    assert [re.findall(r"\d+ \w+", line) for line in said] == [
        ["1 of", "30 cases", "3 properties"],
        ["11 of", "30 cases", "3 properties", "1 failure"],
        ["21 of", "30 cases", "3 properties", "2 failures"],
        ["25 of", "30 cases", "3 properties", "2 failures"],
        [],
    ]
    assert all(line.startswith("gradoracle: ") for line in said)
    assert [place for place, line in enumerate(said) if "time is up" in line] == [3]
    assert "vjp_matches_the_oracle" in said[-1]


def test_a_terminal_gets_a_bar_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    bar = progress()
    assert isinstance(bar, Live)
    bar.case(0, 0, 0, "")  # before a plan there is nothing to show
    bar.plan(9)
    bar.plan(4)
    bar.case(2, 3, 1, "")
    bar.shrinking("vjp_[matches]", "case:1")
    bar.close()
    bar.close()
    assert "2/4" in stream.getvalue() and "vjp_[matches]" in stream.getvalue()
    assert capsys.readouterr().out == ""


def test_elsewhere_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(progress(), Lines)
