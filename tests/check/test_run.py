"""The loop with wrong kernels: each ends in its verdict, exit code and a case that replays; the correct one passes."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import TESTS

from gradoracle.check import judge_case, setup
from gradoracle.check import plan as planning
from gradoracle.check import run as engine
from gradoracle.check.run import check, replay
from gradoracle.cli import main
from gradoracle.model.case import Case, parse
from gradoracle.model.errors import UsageError
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Report, Status, Verdict
from gradoracle.project.request import Request
from gradoracle.report.formats import render

FILE = TESTS / "scaled.py"
FORWARD, VJP, JVP = "forward_matches_the_oracle", "vjp_matches_the_oracle", "jvp_matches_the_oracle"
MATCHING = "[fvj]*_match*"  # the three of them
UNMODIFIED, UNWRITTEN = "inputs_and_cotangents_are_unmodified", "no_memory_is_left_unwritten"
BESIDE, REPEATS = "writes_stay_inside_their_tensors", "runs_are_bit_identical"
BROKEN = (Status.VIOLATED, Status.CRASHED)


def checked(kernel: str, property: str = MATCHING, **fields: Any) -> Report:
    """A kernel of scaled.py on few cases, in this process unless ``workers`` says otherwise."""
    request = Request(f"{FILE}:{kernel}", device="cpu", property=property)
    return check(dataclasses.replace(request, **{"examples": 6, "workers": 0, **fields}))


def verdicts(report: Report) -> dict[str, Verdict]:
    return {verdict.property_name: verdict for verdict in report.verdicts}


def statuses(report: Report) -> dict[str, Status]:
    return {verdict.property_name: verdict.status for verdict in report.verdicts}


def counterexample(verdict: Verdict) -> Any:
    assert verdict.counterexample is not None
    return verdict.counterexample


def same_again(verdict: Verdict, **fields: Any) -> None:
    """The line of a broken verdict gives the same verdict again."""
    again = replay(
        counterexample(verdict).case, workers=fields.pop("workers", 0), property=verdict.property_name, **fields
    )
    assert statuses(again) == {verdict.property_name: verdict.status} and again.exit_code == 1


@pytest.mark.parametrize("properties", [MATCHING, UNMODIFIED, UNWRITTEN, BESIDE, REPEATS])
def test_the_correct_kernel_holds_on_the_same_requests(properties: str) -> None:
    report = checked("right", properties)
    assert set(statuses(report).values()) == {Status.HOLDS} and report.exit_code == 0
    assert report.cases_run == report.cases_planned > 0 and not report.refusals


@pytest.mark.parametrize(
    ("kernel", "how"),
    [
        ("segfaults", "killed by signal 11 (segmentation fault)"),
        ("leaves_at_once", "exited with code 3"),
        ("hangs", "exceeded its time limit of "),
        ("loses_the_device", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ],
)
def test_a_call_that_ends_its_process_crashes_and_the_check_goes_on(
    kernel: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "CALL_SECONDS", 0.5)
    report = checked(kernel, FORWARD, workers=1)
    (verdict,) = report.verdicts
    assert verdict.status is Status.CRASHED and report.exit_code == 1
    assert verdict.cases_held > 0, "the cases that do not crash are judged"
    assert verdict.cases_held + verdict.cases_crashed + verdict.cases_not_checked == report.cases_run == 6
    assert how in counterexample(verdict).message and counterexample(verdict).message.startswith("forward: ")
    assert parse(counterexample(verdict).case)[2].dims["N"] > 7
    text = render([report], "terminal")
    assert counterexample(verdict).case in text and how in text


def test_a_call_that_hangs_is_made_no_more_after_two_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "CALL_SECONDS", 0.4)
    (verdict,) = checked("hangs", FORWARD, workers=1, examples=10).verdicts
    assert verdict.cases_crashed == 2 and verdict.cases_held + verdict.cases_not_checked == 8
    ((reason, cases),) = verdict.reasons.items()
    assert verdict.why is Reason.BARRED and cases == verdict.cases_not_checked
    assert reason.startswith("forward ") and "2 cases (time limit)" in reason


@pytest.mark.parametrize(
    ("kernel", "how"),
    [
        ("exits", "forward called exit with code 5"),
        ("raises_index_error", "forward raised IndexError: row 8 of 7"),
    ],
)
def test_what_no_caller_should_see_is_a_crash(kernel: str, how: str) -> None:
    report = checked(kernel)
    assert set(statuses(report).values()) == {Status.CRASHED} and report.exit_code == 1
    verdict = verdicts(report)[FORWARD]
    assert counterexample(verdict).message == how
    assert verdict.cases_held > 0
    same_again(verdict)


def test_a_crash_in_jvp_leaves_the_other_properties_judged() -> None:
    report = checked("crashes_in_jvp", workers=1, examples=4)
    assert statuses(report) == {FORWARD: Status.HOLDS, VJP: Status.HOLDS, JVP: Status.CRASHED}
    assert verdicts(report)[VJP].cases_held == verdicts(report)[FORWARD].cases_held == 4
    assert report.exit_code == 1
    assert counterexample(verdicts(report)[JVP]).message == "jvp: exited with code 9"
    same_again(verdicts(report)[JVP], workers=1)


def test_a_kernel_that_refuses_everything_is_inconclusive() -> None:
    report = checked("refuses_all")
    assert statuses(report)[FORWARD] is statuses(report)[VJP] is Status.REFUSED
    assert statuses(report)[JVP] is Status.NOT_CHECKED
    assert report.exit_code == 4 and "nothing was checked" in report.inconclusive()
    assert report.goals == {}
    (message,) = report.refusals
    assert message.startswith("ValueError: ") and message.endswith(" somebody else's")
    assert report.refusals[message]["dtype=float32"] == 6


def test_what_is_refused_is_tabulated_by_dim_and_the_rest_holds() -> None:
    report = checked("refuses_odd", FORWARD, examples=30)
    (verdict,) = report.verdicts
    table = report.refusals["ValueError: N must be even"]
    assert verdict.status is Status.HOLDS and report.exit_code == 0
    assert verdict.cases_held + verdict.cases_refused == 30 and 0 < verdict.cases_refused < 30
    sizes = {int(mark.partition("=")[2]): count for mark, count in table.items() if mark.startswith("N=")}
    assert sum(sizes.values()) == verdict.cases_refused and all(size % 2 for size in sizes)


def test_a_kernel_that_lacks_memory_is_not_checked() -> None:
    report = checked("lacks_memory")
    assert set(statuses(report).values()) == {Status.NOT_CHECKED} and report.exit_code == 4
    assert verdicts(report)[FORWARD].why is Reason.MEMORY
    ((reason, cases),) = verdicts(report)[FORWARD].reasons.items()
    assert "9 TiB" in reason and cases == 6


@pytest.mark.parametrize(
    ("kernel", "property_name", "message"),
    [
        ("gives_another_shape", FORWARD, "y has shape (1, 1, 1), expected (1, 1)"),
        ("gives_another_shape", VJP, "y has shape (1, 1, 1), expected (1, 1)"),
        ("gives_another_dtype", FORWARD, "y has dtype float64, expected float32"),
        ("gives_no_gradient_of_w", VJP, "dw is None: w takes part in the definition, so it has a gradient"),
        ("gives_no_gradient", VJP, "the output y has no gradient: it does not require grad"),
        ("gives_nan", FORWARD, "1 of 1 elements: the kernel's value is not finite although the truth is"),
        ("gives_a_list_of_numbers", FORWARD, "the kernel returned list, expected y[B N]"),
        ("gives_nothing", FORWARD, "the kernel returned NoneType, expected y[B N]"),
        ("gives_too_few", FORWARD, "the kernel returned 0 tensors, expected 1"),
        ("gives_too_many", FORWARD, "the kernel returned 2 tensors, expected 1"),
        ("changes_its_input", UNMODIFIED, "1 of 1 elements were changed"),
        ("leaves_memory_unwritten", UNWRITTEN, "1 of 1 elements were never written"),
        ("writes_beside_its_tensor", BESIDE, "1 elements after a tensor of shape (1, 1) were written"),
    ],
)
def test_a_wrong_answer_is_violated_on_its_smallest_case(kernel: str, property_name: str, message: str) -> None:
    report = checked(kernel, property_name)
    (verdict,) = report.verdicts
    assert verdict.status is Status.VIOLATED and report.exit_code == 1
    assert any(message in finding.message for finding in counterexample(verdict).findings)
    target, device, case = parse(counterexample(verdict).case)
    assert target.endswith(f":{kernel}") and device == "cpu"
    assert case == Case("scaled", {"B": 1, "N": 1}, "float32", seed=0)
    assert counterexample(verdict).case in render([report], "terminal")
    same_again(verdict)


def test_bits_that_differ_from_run_to_run_break_what_is_claimed() -> None:
    report = checked("differs_from_run_to_run", REPEATS)
    (verdict,) = report.verdicts
    assert verdict.status is Status.VIOLATED and report.exit_code == 1
    assert parse(counterexample(verdict).case)[2].dims["B"] <= 5


def test_a_wrong_backward_is_violated_alone_and_small() -> None:
    report = checked("has_a_wrong_backward")
    assert statuses(report) == {FORWARD: Status.HOLDS, VJP: Status.VIOLATED, JVP: Status.HOLDS}
    verdict = verdicts(report)[VJP]
    assert verdict.cases_violated == 6 and report.exit_code == 1
    found = counterexample(verdict)
    assert {f.tensor for f in found.findings if f.outcome.value == "violated"} == {"dw"}
    assert parse(found.case)[2].dims == {"B": 1, "N": 1} and found.message == ""
    same_again(verdict)


def test_a_violation_is_the_same_in_a_worker() -> None:
    report = checked("has_a_wrong_backward", workers=1)
    here = checked("has_a_wrong_backward")
    assert [dataclasses.replace(v, counterexample=None) for v in report.verdicts] == [
        dataclasses.replace(v, counterexample=None) for v in here.verdicts
    ]
    assert counterexample(verdicts(report)[VJP]).case == counterexample(verdicts(here)[VJP]).case


def test_several_kernels_of_a_file_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    text = FILE.read_text()
    file.write_text(text[: text.index("@kernel\ndef hangs")] + text[text.index("class _Product") :])
    report = check(Request(str(file), device="cpu", property=VJP, examples=3, workers=0))
    found = {verdict.kernel: verdict for verdict in report.verdicts}
    assert {name: verdict.status for name, verdict in found.items() if name != "leaves_memory_unwritten"} == {
        "right": Status.HOLDS,
        "writes_beside_its_tensor": Status.HOLDS,
        "has_a_wrong_backward": Status.VIOLATED,
        "crashes_in_jvp": Status.HOLDS,
    }
    assert f"{file}:has_a_wrong_backward " in counterexample(found["has_a_wrong_backward"]).case


def test_an_error_of_our_own_keeps_the_other_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    real = judge_case.sample_of

    def broken(case: Any, *args: Any, **keywords: Any) -> Any:
        if case.dims["N"] > 20:
            raise ZeroDivisionError("our own")
        return real(case, *args, **keywords)

    monkeypatch.setattr(judge_case, "sample_of", broken)
    report = checked("right", FORWARD, examples=10)
    (verdict,) = report.verdicts
    assert report.exit_code == 3 and verdict.status is Status.ERROR
    assert 0 < verdict.cases_held < 10 and verdict.cases_held + verdict.cases_error == 10
    found = counterexample(verdict)
    assert found.message == "ZeroDivisionError: our own" and parse(found.case)[2].dims["N"] > 20
    assert "in broken" in found.trace


@pytest.mark.parametrize(("kernel", "code"), [("right", 3), ("has_a_wrong_backward", 1)])
def test_an_error_of_one_property_is_one_entry_and_hides_no_violation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kernel: str, code: int
) -> None:
    """The other properties go on; every view shows the entry with a line that replays it."""
    real = setup.properties_of

    def properties_of(family: Any) -> list[Any]:
        return [dataclasses.replace(prop, judge=empty) if prop.name == JVP else prop for prop in real(family)]

    def empty(evidence: Any) -> Iterator[Any]:
        yield from ()

    monkeypatch.setattr(setup, "properties_of", properties_of)
    words = ["check", f"{FILE}:{kernel}", "--device", "cpu", "--workers", "0", "--examples", "6"]
    words += ["--property", MATCHING]
    assert main.run([*words, "--verbose"]) == code
    out, err = capsys.readouterr()
    said = " ".join(out.split())
    assert re.search(rf"! ERROR {JVP} {kernel}, float32, (\d) of \1 cases", said)
    assert "error EmptyCheck: " in said
    assert "forward_matches_the_oracle ✓" in said and ("✗ WRONG vjp_matches" in said) == (code == 1)
    assert f"internal error in {JVP}; the traceback" in err
    case = counterexample(verdicts(checked(kernel))[JVP]).case
    assert replay(case, workers=0, property=JVP).exit_code == 3
    for view in ("json", "junit", "sarif", "github", "markdown", "html"):
        capsys.readouterr()
        assert main.run([*words, "--format", view]) == code
        assert "EmptyCheck" in capsys.readouterr().out


def test_what_is_required_must_have_been_checked() -> None:
    report = checked("right", require=(FORWARD, JVP))
    assert report.exit_code == 0
    report = checked("refuses_all", require=(VJP,))
    assert report.exit_code == 4
    assert any(unmet.startswith(f"--require {VJP}: ") for unmet in report.unmet)
    report = checked("right", FORWARD, require=(VJP,))
    assert report.exit_code == 4, "a required property that --property leaves out was not checked"


@pytest.mark.parametrize("fields", [{"property": "no_such_*"}, {"require": ("no_such_*",)}])
def test_a_glob_that_matches_no_property_is_a_mistake(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no_such_"):
        checked("right", **fields)


def test_shards_cover_the_stream_exactly_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    dtypes: list[set[str]] = []
    real = engine.Run.over

    def over(self: Any, planned: Any) -> None:
        seen.extend(str(job.case) for job in planned.jobs)
        dtypes.append({job.case.dtype for job in planned.jobs})
        real(self, planned)

    monkeypatch.setattr(engine.Run, "over", over)
    checked("right", FORWARD, examples=9)
    whole, again = list(seen), []
    for part in (1, 2, 3):
        seen.clear()
        checked("right", FORWARD, examples=9, shard=(part, 3))
        again.append(list(seen))
    assert len(set(whole)) == len(whole) == 9
    assert sorted(case for part in again for case in part) == sorted(whole)
    assert all(each == dtypes[0] for each in dtypes), "a shard has every dtype"
    seen.clear()
    checked("right", FORWARD, examples=9)
    assert seen == whole, "the same seed gives the same stream"
    seen.clear()
    checked("right", FORWARD, examples=9, seed=1)
    assert seen != whole


def test_seconds_stop_after_a_whole_case() -> None:
    report = checked("right", FORWARD, examples=50, seconds=1e-9)
    assert report.cases_run == 0 and report.exit_code == 4 and report.cases_planned == 50
    report = checked("right", FORWARD, examples=5, seconds=1000.0)
    assert report.cases_run == 5 and report.exit_code == 0


def test_a_case_is_shown_again_with_the_contracts_and_arguments_of_the_check(tmp_path: Path) -> None:
    file = tmp_path / "shifted.py"
    text = FILE.read_text().replace(
        "def right(x, w):\n    return x * w", "def right(x, w, *, by=0.0):\n    return x * w + by"
    )
    file.write_text(text[: text.index("@kernel\ndef hangs")])
    request = Request(str(file), device="cpu", property=FORWARD, examples=3, workers=0)
    assert check(request).exit_code == 0
    report = check(dataclasses.replace(request, contracts={"float32": "tf32"}, arguments={"by": 0.5}))
    (verdict,) = report.verdicts
    found = counterexample(verdict)
    assert verdict.status is Status.VIOLATED
    assert shlex.split(found.command) == [
        "gradoracle", "replay", found.case, "--contract", "float32=tf32", "--arg", "by=0.5"
    ]  # fmt: skip
    assert found.command in render([report], "terminal")
    fields = {"contracts": request.contracts, "arguments": {"by": 0.5}}
    same_again(verdict, **fields)
    assert replay(found.case, workers=0, property=FORWARD).exit_code == 0, "without the argument nothing is wrong"
