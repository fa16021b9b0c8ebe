"""The time limit of a kernel call: a request can set it, a hang names it, and a replay keeps it."""

from __future__ import annotations

from typing import Any

import pytest
from places import TESTS

from gradoracle.check.run import check, replay
from gradoracle.cli import main
from gradoracle.model.derivative import Derivative
from gradoracle.model.errors import UsageError
from gradoracle.model.verdict import Status
from gradoracle.project.request import Request

FILE = TESTS / "scaled.py"
LINE = f"case:1 {FILE}:{{}} cpu float32 family=scaled B=1 N=9 seed=1"
FIELDS: dict[str, Any] = {"workers": 1, "property": "forward_matches_the_oracle"}


def test_a_hang_names_the_option_and_its_replay_keeps_the_limit() -> None:
    report = check(Request(f"{FILE}:hangs", device="cpu", examples=6, call_seconds=0.25, **FIELDS))
    (verdict,) = report.verdicts
    assert verdict.status is Status.CRASHED and verdict.counterexample is not None
    assert verdict.counterexample.crashed_in is Derivative.FORWARD
    said, command = verdict.counterexample.message, verdict.counterexample.command
    assert "its time limit of 0." in said and said.endswith(" --call-seconds")
    assert command.startswith("gradoracle replay ") and command.endswith(" --call-seconds 0.25")


@pytest.mark.parametrize(("limit", "status"), [(0.1, Status.CRASHED), (20.0, Status.HOLDS)])
def test_a_slow_kernel_is_judged_where_it_has_the_time(limit: float, status: Status) -> None:
    (verdict,) = replay(LINE.format("takes_half_a_second"), call_seconds=limit, **FIELDS).verdicts
    assert verdict.status is status


@pytest.mark.parametrize("given", [0.0, -1.0, float("inf"), float("nan")])
def test_a_limit_is_a_positive_number(given: float, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"call_seconds .* got "):
        Request("sdpa", call_seconds=given)
    assert main.run(["replay", LINE.format("right"), "--call-seconds", str(given)]) == 2
    err = capsys.readouterr().err
    assert "--call-seconds " in err and f" got {given:g}" in err


def test_a_script_has_no_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["replay", LINE.format("right"), "--script", "--call-seconds", "3"]) == 2
    err = capsys.readouterr().err
    assert "--call-seconds cannot" in err and "combined with --script" in err
