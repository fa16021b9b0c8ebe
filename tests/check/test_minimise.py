"""What is shown of a failing verdict: crashes are made smaller as violations are, hangs are not and say so."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from places import TESTS

from gradoracle.cases.saved_tensors import saved_line
from gradoracle.check import minimise
from gradoracle.check import plan as planning
from gradoracle.check import run as running
from gradoracle.check.barring import Barring
from gradoracle.check.minimise import _Minimiser, as_plain
from gradoracle.check.run import check, replay
from gradoracle.cli import main
from gradoracle.model.case import Case, parse
from gradoracle.model.derivative import Derivative
from gradoracle.model.dims import sizes
from gradoracle.model.fault import VerdictKey
from gradoracle.model.finding import LOCAL_SIGMA, Finding, Outcome
from gradoracle.model.job import PropertyResult
from gradoracle.model.serialize import to_plain
from gradoracle.model.verdict import Report, Status, Verdict
from gradoracle.project.request import Progress, Request
from gradoracle.report.formats import render
from gradoracle.report.shown_fault import shown_faults
from tests.check.test_ledgers import LEANS
from tests.scaled import scaled

FILE = TESTS / "scaled.py"
FORWARD, VJP = "forward_matches_the_oracle", "vjp_matches_the_oracle"
BOTH = "[fv]*_matches_the_oracle"


def checked(kernel: str, property: str = FORWARD, **fields: Any) -> Report:
    request = Request(f"{FILE}:{kernel}", device="cpu", property=property)
    return check(dataclasses.replace(request, **{"examples": 6, "workers": 1, **fields}))


def shown(verdict: Verdict) -> Any:
    assert verdict.counterexample is not None
    return verdict.counterexample


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No result here hangs on how fast the machine is."""
    monkeypatch.setattr(minimise, "SHRINK_SECONDS", 600.0)
    monkeypatch.setattr(minimise, "SHRINK_SECONDS_IN_ALL", 3600.0)


@pytest.mark.parametrize(
    ("kernel", "workers", "how"),
    [
        ("segfaults", 1, "signal 11"),
        ("exits", 0, "exit with code 5"),
    ],
)
def test_a_crash_is_made_smaller_and_replays(kernel: str, workers: int, how: str) -> None:
    (verdict,) = checked(kernel, workers=workers).verdicts
    found = shown(verdict)
    assert (verdict.status, found.crashed_in) == (Status.CRASHED, Derivative.FORWARD) and how in found.message
    case = parse(found.case)[2]
    assert dict(case.dims) == {"B": 1, "N": 8}, "it crashes from N = 8 on"
    assert not case.draws and case.seed == 0 and found.shrunk_from and not found.shrink_note
    assert parse(found.shrunk_from)[2].dims["N"] > 8
    again = replay(found.case, workers=1, property=FORWARD)
    assert [(v.status, shown(v).message) for v in again.verdicts] == [(Status.CRASHED, found.message)]
    below = found.case.replace("N=8", "N=7")
    assert [v.status for v in replay(below, workers=1, property=FORWARD).verdicts] == [Status.HOLDS]


def test_shrinking_ends_before_the_fault_has_nearly_vanished() -> None:
    """2^-28 N^4 of the values: 1.3 times the budget at N = 6, a thousand times where it is first seen."""
    found = shown(checked("is_wronger_in_longer_rows", workers=0).verdicts[0])
    wrong = found.findings[0]
    assert LOCAL_SIGMA <= wrong.error < 3 * LOCAL_SIGMA and wrong.rule == "local"
    assert dict(parse(found.case)[2].dims)["B"] == 1 and found.shrunk_from


def result(*findings: tuple[str, float, bool]) -> PropertyResult:
    wrong = (Finding(name, Outcome.VIOLATED, "local", error, lost=lost) for name, error, lost in findings)
    held = (Finding("dv", Outcome.HOLDS, "local", 0.5),)
    return PropertyResult("property", Status.VIOLATED if findings else Status.HOLDS, (*wrong, *held))


@pytest.mark.parametrize(
    ("smaller", "first", "expected"),
    [
        ([("dq", 1e5, False)], [("dq", 1e5, False)], True),
        ([("dq", 9.0, False)], [("dq", 1e5, False)], True),
        ([("dq", 1.3, False)], [("dq", 1e5, False)], False),
        ([("dq", 1.2, False)], [("dq", 1.3, False)], False),
        ([("dq", 1.4, False)], [("dq", 1.3, False)], True),
        ([("dk", 1e5, False)], [("dq", 1e5, False)], False),  # another fault
        ([("dk", 1e5, False), ("dq", 9.0, False)], [("dq", 1e5, False)], True),
        ([("dk", 9.0, False)], [("dk", 20.0, False), ("dq", 1e5, False)], False),
        ([("dq", math.inf, True)], [("dq", 1e5, False)], False),  # NaN is no wrong number
        ([("dq", 1e5, False)], [("dq", math.inf, True)], False),
        ([("dq", math.inf, True)], [("dq", math.inf, True)], True),
        ([("dq", 1e5, False)], [("dq", math.inf, False)], False),  # a fact has no budget
        ([], [("dq", 1e5, False)], False),
    ],
)
def test_a_smaller_case_counts_if_it_shows_the_fault_as_plainly(
    smaller: list[tuple[str, float, bool]], first: list[tuple[str, float, bool]], expected: bool
) -> None:
    assert as_plain(result(*smaller), result(*first)) is expected


def test_all_properties_that_one_call_breaks_show_one_small_case_and_the_first_of_them_leads() -> None:
    report = checked("exits", "[fin]*m*", workers=0)
    broken = [v for v in report.verdicts if v.status is Status.CRASHED]
    broken = [v for v in broken if shown(v).message.startswith("forward called")]
    assert {v.property_name for v in broken} >= {
        FORWARD,
        "inputs_and_cotangents_are_unmodified",
        "no_memory_is_left_unwritten",
    }
    assert len({shown(v).case for v in broken}) == 1
    assert shown_faults(report)[0].lead.property_name == FORWARD, (
        "the property of the highest rank says no more of a crash"
    )


def test_a_crash_of_another_kind_is_not_what_is_made_smaller() -> None:
    (verdict,) = checked("crashes_in_two_ways", workers=0).verdicts
    assert shown(verdict).crashed_in is Derivative.FORWARD and shown(verdict).message.endswith("KeyError: 'too long'")
    assert dict(parse(shown(verdict).case)[2].dims) == {"B": 1, "N": 13}, "from N = 8 on it raises IndexError"


def test_a_hang_is_not_made_smaller_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "CALL_SECONDS", 0.4)
    report = checked("hangs")
    found = shown(report.verdicts[0])
    assert found.shrunk_from == "" and parse(found.case)[2].dims["N"] > 8
    assert found.shrink_note.startswith("not shrunk: ") and "a call that hangs" in found.shrink_note
    assert found.shrink_note in render([report], "terminal")


def test_without_time_a_crash_is_shown_as_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minimise, "SHRINK_SECONDS_IN_ALL", 0.0)
    found = shown(checked("exits", workers=0).verdicts[0])
    assert found.shrink_note.startswith("not shrunk: the time ")
    assert found.shrunk_from == ""


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "my tensors.pt"
    torch.save({"x": torch.randn(4, 12, generator=torch.Generator().manual_seed(1)), "w": torch.ones(12)}, path)
    return str(path)


def test_the_command_of_saved_tensors_shows_the_failure_again(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = checked("has_a_wrong_backward", VJP, workers=0, inputs=saved, oracle="float64")
    found = shown(report.verdicts[0])
    assert f" x, w of {saved}: float32 B=4 N=12; " in found.case and found.case.endswith(" seed 0: dy, tx, tw")
    text = render([report], "terminal")
    assert "gradoracle replay" not in text and "case:1" not in text and f"replay   {found.command}" in text
    words = shlex.split(found.command)
    assert words[:5] == ["gradoracle", "check", f"{FILE}:has_a_wrong_backward", "--inputs", saved]
    assert words[-4:] == ["--oracle", "float64", "--property", VJP]
    assert main.run([*words[1:], "--workers", "0"]) == 1 and "dw       [worst case]" in capsys.readouterr().out
    right = [word.replace("has_a_wrong_backward", "right") for word in words[1:]]
    assert main.run([*right, "--workers", "0"]) == 0


def test_what_all_cases_show_together_is_shown_again_by_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slope of 2.5e-8 of float32, which no case of at most 40 elements decides by itself."""
    file, property_name = tmp_path / "leans.py", "forward_matches_the_oracle"
    file.write_text(LEANS.replace("SLOPE", "2.5e-8"))
    request = Request(
        str(file), dtypes=("float32",), dims={"N": sizes(1, 40)}, examples=60, property=property_name, workers=0
    )
    found = shown(check(request).verdicts[0])
    assert found.pooled and [finding.rule for finding in found.findings] == ["bias"]
    assert "the error is +2." in found.findings[0].message
    words = shlex.split(found.command)
    assert words[:2] == ["gradoracle", "check"] and words[5:9] == ["--dim", "N=1:40", "--examples", "60"]
    assert main.run([*words[1:], "--workers", "0"]) == 1
    out = capsys.readouterr().out
    assert "all 60 cases together" in out and f"replay   {found.command}" in out and "first    case:1" in out
    file.write_text(LEANS.replace("SLOPE", "0"))
    assert main.run([*words[1:], "--workers", "0"]) == 0


def test_a_crash_on_saved_tensors_names_the_file_too(saved: str) -> None:
    found = shown(checked("exits", workers=0, inputs=saved).verdicts[0])
    assert found.case.startswith(f"the tensors x, w of {saved}: float32 B=4 N=12")
    assert found.crashed_in is Derivative.FORWARD and "code 5" in found.message and "--inputs" in found.command


def test_options_are_part_of_what_is_reported_of_saved_tensors(saved: str) -> None:
    case = Case("scaled", {"B": 4, "N": 12}, "float32", {"causal": True}, seed=3)
    shown = saved_line(case, scaled, saved)
    assert " B=4 N=12 --causal=True; " in shown and "seed 3" in shown


def test_the_pattern_of_the_first_case_is_kept_with_the_smallest_case() -> None:
    report = checked("loses_its_tail", FORWARD, workers=0)
    found = shown(report.verdicts[0])
    (smallest,), (first,) = found.findings, found.first_findings
    columns = parse(found.shrunk_from)[2].dims["N"]
    assert parse(found.case)[2].dims == {"B": 1, "N": 9} and smallest.pattern == "only N = 8 (the last); NaN"
    assert first.pattern == f"only N >= 8 (of {columns}); NaN" and columns > 9
    rows = [line for line in render([report], "terminal").splitlines() if line.startswith("  pattern ")]
    assert any("first case" in row and row.endswith(f": {first.pattern}") for row in rows)
    again = shown(replay(found.case, workers=0, property=FORWARD).verdicts[0])
    assert again.first_findings == () and again.shrunk_from == ""


Spot = Callable[[pytest.MonkeyPatch], None]


def interrupted_at(owner: Any, name: str, call: int = 1, **given: Any) -> Spot:
    """Ctrl-C arrives in one call of a function: the ``call``-th of those with these keyword arguments."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        original, calls = getattr(owner, name), []

        def function(*args: Any, **fields: Any) -> Any:
            calls.extend([1] * (given.items() <= fields.items()))
            if given.items() <= fields.items() and len(calls) == call:
                raise KeyboardInterrupt
            return original(*args, **fields)

        monkeypatch.setattr(owner, name, function)

    return plant


def after_the_first_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives while the smallest case of one crash is tried for another."""
    original, attempt, done = _Minimiser._smaller_crash, Barring.attempt, []

    def smaller(*args: Any) -> Any:
        found = original(*args)
        done.append(found)
        return found

    def tried(*args: Any) -> Any:
        if done:
            raise KeyboardInterrupt
        return attempt(*args)

    monkeypatch.setattr(_Minimiser, "_smaller_crash", smaller)
    monkeypatch.setattr(Barring, "attempt", tried)


@pytest.mark.parametrize(
    ("kernel", "spot"),
    [
        ("loses_its_tail", interrupted_at(_Minimiser, "_judge")),
        ("loses_its_tail", interrupted_at(_Minimiser, "_judge", 3)),
        ("loses_its_tail", interrupted_at(_Minimiser, "_again")),
        ("loses_its_tail", interrupted_at(_Minimiser, "_violation", 2)),
        ("loses_its_tail", interrupted_at(_Minimiser, "_edited", 2)),
        ("loses_its_tail", interrupted_at(_Minimiser, "_applies", 2)),
        ("loses_its_tail", interrupted_at(Progress, "shrinking")),
        ("loses_its_tail", interrupted_at(running, "faults_of")),
        ("exits", interrupted_at(_Minimiser, "_crash")),
        ("exits", interrupted_at(_Minimiser, "_smaller_crash")),
        ("exits", interrupted_at(_Minimiser, "_applies")),
        ("exits", interrupted_at(Barring, "attempt")),
        ("exits", interrupted_at(Barring, "attempt", 3)),
        ("exits", after_the_first_crash),
    ],
)
def test_an_interrupt_loses_nothing_that_is_known(kernel: str, spot: Spot, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {(v.property_name, v.status) for v in checked(kernel, BOTH, workers=0).verdicts}
    spot(monkeypatch)
    report = checked(kernel, BOTH, workers=0)
    failing = [v for v in report.verdicts if v.status in (Status.VIOLATED, Status.CRASHED)]
    assert (
        {(v.property_name, v.status) for v in report.verdicts} == whole and len(failing) == 2 and report.exit_code == 1
    )
    assert report.interrupted.startswith("interrupted while")
    for verdict in failing:
        found = shown(verdict)
        assert parse(found.case)[2].dims["N"] >= 1 and (
            found.message if verdict.status is Status.CRASHED else found.findings
        )
    assert any("interrupted" in shown(v).shrink_note for v in failing)
    text = render([report], "terminal")
    assert f"also     {report.interrupted}" in text and all(shown(v).shrink_note in text for v in failing[:1])


def test_what_was_shrunk_before_an_interrupt_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_at(_Minimiser, "_again")(monkeypatch)
    (verdict,) = checked("loses_its_tail", workers=0).verdicts
    found = shown(verdict)
    assert parse(found.case)[2].dims == {"B": 1, "N": 9} and found.shrunk_from and found.findings[0].lost


def test_an_interrupt_while_the_report_is_computed_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = checked("loses_its_tail", workers=0)
    interrupted_at(running, "report_of")(monkeypatch)
    report = checked("loses_its_tail", workers=0)
    assert to_plain(report.verdicts) == to_plain(whole.verdicts) and report.exit_code == 1


def test_a_second_interrupt_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "faults_of", always)
    with pytest.raises(KeyboardInterrupt):
        checked("loses_its_tail", workers=0)


def test_a_violation_that_holds_when_it_is_judged_again_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        _Minimiser,
        "_again",
        lambda self, kernel, case, name, calls: PropertyResult(name, Status.HOLDS, ()),
    )
    found = shown(checked("loses_its_tail", workers=0).verdicts[0])
    assert [f.outcome for f in found.findings] == [Outcome.VIOLATED]
    assert "judged again" in found.message


@pytest.mark.parametrize(("seconds", "judged_again"), [(0.0, False), (None, True)])
def test_where_time_for_explaining_is_up_a_violation_stands_as_it_was_found(
    seconds: float | None, judged_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    again = _Minimiser._again

    def counted(self: _Minimiser, kernel: str, case: Case, property_name: str, *calls: Any) -> PropertyResult:
        found.append(property_name)
        return again(self, kernel, case, property_name, *calls)

    monkeypatch.setattr(_Minimiser, "_again", counted)
    (verdict,) = checked("loses_its_tail", workers=0, shrink_seconds=seconds).verdicts
    assert verdict.status is Status.VIOLATED and bool(found) == judged_again
    assert any(each.outcome is Outcome.VIOLATED for each in shown(verdict).findings)


def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The properties whose cases are made smaller, in turn, once a check runs."""
    found: list[str] = []
    violation = _Minimiser._violation

    def noted(self: _Minimiser, key: VerdictKey, *rest: Any) -> Any:
        found.append(key.property_name)
        return violation(self, key, *rest)

    monkeypatch.setattr(_Minimiser, "_violation", noted)
    return found


def test_the_counterexample_of_a_fault_is_shrunk_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = turns(monkeypatch)
    report = checked("loses_its_tail", "*", workers=0)
    leads = [fault.lead.property_name for fault in shown_faults(report)]
    broken = {each.property_name for each in report.verdicts if each.status is Status.VIOLATED}
    assert found[: len(leads)] == leads and set(found) == broken > set(leads)


def test_where_tries_are_counted_other_verdicts_stay_as_they_were_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found, judged = turns(monkeypatch), [0]
    judge = _Minimiser._judge

    def counted(self: _Minimiser, *given: Any, **named: Any) -> PropertyResult:
        judged[0] += 1
        return judge(self, *given, **named)

    monkeypatch.setattr(_Minimiser, "_judge", counted)
    report = checked("loses_its_tail", "*", workers=0, shrink_tries=30)
    told = shown_faults(report)
    assert found == [fault.lead.property_name for fault in told] and all(fault.specific is None for fault in told)
    assert 0 < judged[0] <= 30 and {shown(fault.lead).shrink_note for fault in told} == {""}
    others = [each for fault in told for each in fault.others]
    assert others and {shown(each).shrink_note for each in others} == {minimise.NOT_TELLING}


@pytest.mark.parametrize(
    ("tries", "note"),
    [
        (0, "not shrunk: the attempts "),
        (1, "after 1 case"),
    ],
)
@pytest.mark.parametrize("kernel", ["loses_its_tail", "exits"])
def test_no_more_cases_are_tried_than_asked_for(kernel: str, tries: int, note: str) -> None:
    found = shown(checked(kernel, workers=0, shrink_tries=tries).verdicts[0])
    assert note in found.shrink_note
