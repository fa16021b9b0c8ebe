"""What is shown of a failing verdict: crashes are made smaller as violations are, hangs are not and say so."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from gradoracle import check as engine
from gradoracle import cli, counterexamples
from gradoracle.case import Case, parse
from gradoracle.check import check, replay
from gradoracle.report import render
from gradoracle.report.failure import failures
from gradoracle.request import Request
from gradoracle.saved import saved_line
from gradoracle.verdict import Report, Status, Verdict
from tests.scaled import scaled

FILE = Path(__file__).with_name("scaled.py")
FORWARD, VJP = "forward_matches_the_oracle", "vjp_matches_the_oracle"


def checked(kernel: str, property: str = FORWARD, **fields: Any) -> Report:
    request = Request(f"{FILE}:{kernel}", device="cpu", property=property)
    return check(dataclasses.replace(request, **{"examples": 6, "workers": 1, **fields}))


def shown(verdict: Verdict) -> Any:
    assert verdict.counterexample is not None
    return verdict.counterexample


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No result here hangs on how fast the machine is."""
    monkeypatch.setattr(counterexamples, "SHRINK_SECONDS", 600.0)
    monkeypatch.setattr(counterexamples, "SHRINK_SECONDS_IN_ALL", 3600.0)


@pytest.mark.parametrize(
    ("kernel", "workers", "how"),
    [
        ("segfaults", 1, "forward: killed by signal 11 (segmentation fault)"),
        ("exits", 0, "forward called for an exit with code 5"),
    ],
)
def test_a_crash_is_made_smaller_and_replays(kernel: str, workers: int, how: str) -> None:
    (verdict,) = checked(kernel, workers=workers).verdicts
    found = shown(verdict)
    assert (verdict.status, found.message) == (Status.CRASHED, how)
    case = parse(found.case)[2]
    assert dict(case.dims) == {"B": 1, "N": 8}, "it crashes from N = 8 on"
    assert not case.draws and case.seed == 0 and found.shrunk_from and not found.shrink_note
    assert parse(found.shrunk_from)[2].dims["N"] > 8
    again = replay(found.case, workers=1, property=FORWARD)
    assert [(v.status, shown(v).message) for v in again.verdicts] == [(Status.CRASHED, how)]
    below = found.case.replace("N=8", "N=7")
    assert [v.status for v in replay(below, workers=1, property=FORWARD).verdicts] == [Status.HOLDS]


def test_all_laws_that_one_call_breaks_show_one_small_case_and_the_first_of_them_leads() -> None:
    report = checked("exits", "[fin]*m*", workers=0)
    broken = [v for v in report.verdicts if v.status is Status.CRASHED]
    broken = [v for v in broken if shown(v).message.startswith("forward called")]
    assert {v.law for v in broken} >= {FORWARD, "inputs_and_cotangents_are_unmodified", "no_memory_is_left_unwritten"}
    assert len({shown(v).case for v in broken}) == 1
    assert failures(report)[0].lead.law == FORWARD, "the law of the highest rank says no more of a crash"


def test_a_crash_of_another_kind_is_not_what_is_made_smaller() -> None:
    (verdict,) = checked("crashes_in_two_ways", workers=0).verdicts
    assert shown(verdict).message == "forward raised KeyError: 'too long'"
    assert dict(parse(shown(verdict).case)[2].dims) == {"B": 1, "N": 13}, "from N = 8 on it raises IndexError"


def test_a_hang_is_not_made_smaller_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CALL_SECONDS", 0.4)
    report = checked("hangs")
    found = shown(report.verdicts[0])
    assert found.shrunk_from == "" and parse(found.case)[2].dims["N"] > 8
    assert found.shrink_note == "not shrunk: each try of a call that hangs would take its time limit"
    assert found.shrink_note in render([report], "terminal")


def test_without_time_a_crash_is_shown_as_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counterexamples, "SHRINK_SECONDS_IN_ALL", 0.0)
    found = shown(checked("exits", workers=0).verdicts[0])
    assert found.shrink_note == "not shrunk: the time for shrinking was used up by other laws"
    assert found.shrunk_from == ""


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "my tensors.pt"
    torch.save({"x": torch.randn(4, 12, generator=torch.Generator().manual_seed(1)), "w": torch.ones(12)}, path)
    return str(path)


def test_the_command_of_saved_tensors_shows_the_failure_again(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = checked("has_a_wrong_backward", VJP, workers=0, inputs=saved, oracle="float64")
    found = shown(report.verdicts[0])
    assert found.case == f"the tensors x, w of {saved}: float32 B=4 N=12; drawn with seed 0: dy, tx, tw"
    text = render([report], "terminal")
    assert "gradoracle replay" not in text and "case:1" not in text and f"replay   {found.command}" in text
    words = shlex.split(found.command)
    assert words[:5] == ["gradoracle", "check", f"{FILE}:has_a_wrong_backward", "--inputs", saved]
    assert words[-4:] == ["--oracle", "float64", "--property", VJP]
    assert cli.run([*words[1:], "--workers", "0"]) == 1 and "dw       [worst case]" in capsys.readouterr().out
    right = [word.replace("has_a_wrong_backward", "right") for word in words[1:]]
    assert cli.run([*right, "--workers", "0"]) == 0


def test_a_crash_on_saved_tensors_is_told_by_the_file_too(saved: str) -> None:
    found = shown(checked("exits", workers=0, inputs=saved).verdicts[0])
    assert found.case.startswith(f"the tensors x, w of {saved}: float32 B=4 N=12")
    assert found.message == "forward called for an exit with code 5" and "--inputs" in found.command


def test_options_are_part_of_what_is_told_of_saved_tensors(saved: str) -> None:
    case = Case("scaled", {"B": 4, "N": 12}, "float32", {"causal": True}, seed=3)
    assert "float32 B=4 N=12 --causal=True; drawn with seed 3" in saved_line(case, scaled, saved)
