"""The pace of a run: what comes first, what a run that is cut short says, and that it ends when it is to."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
from places import TESTS

from gradoracle.cases.stream import stream
from gradoracle.check import execute, judge_case
from gradoracle.check import run as engine
from gradoracle.check.fold import first_failure
from gradoracle.check.plan import plan, properties_on, resolved
from gradoracle.check.run import check, header_of, running
from gradoracle.check.tally import Judged
from gradoracle.cli import main
from gradoracle.cli.commands import check as commands
from gradoracle.model.case import Case
from gradoracle.model.errors import UsageError
from gradoracle.model.fault import VerdictKey
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.job import PropertyResult
from gradoracle.model.ledger import CaseRecord
from gradoracle.model.verdict import Report, Status, Verdict
from gradoracle.project.request import Progress, Request
from gradoracle.project.target import shipped

FILE = TESTS / "scaled.py"
FORWARD = "forward_matches_the_oracle"
SEVERAL = """
import time
from jaxtyping import Float
from torch import Tensor
import gradoracle


@gradoracle.family(dtypes=("float32", "float64"))
def doubled(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return 2 * x


@gradoracle.kernel(doubled)
def first(x):
    return 2 * x


@gradoracle.kernel(doubled)
def second(x):
    time.sleep({seconds})
    return 2 * x
"""


class Told(Progress):
    """Keeps what a run reports of itself."""

    def __init__(self) -> None:
        self.cases: list[tuple[int, int, int, str]] = []
        self.failures: list[tuple[int, Verdict]] = []

    def case(self, done: int, properties: int, failing: int, note: str) -> None:
        self.cases.append((done, properties, failing, note))

    def failure(self, verdict: Verdict) -> None:
        self.failures.append((len(self.cases), verdict))


def asked(target: str, **fields: Any) -> Request:
    return dataclasses.replace(Request(target, device="cpu", property=FORWARD, workers=0, examples=12), **fields)


class Ticks:
    """A clock that is a second on whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case takes a second of the run's time, and each property one of its case's."""
    clock = Ticks()
    for module in (engine, execute):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(judge_case, "time", Ticks())


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """Two kernels of one family in a file."""
    file = tmp_path / "several.py"
    file.write_text(SEVERAL.format(seconds=0.0))
    return file


@pytest.mark.usefixtures("ticks")
def test_kernels_of_a_file_take_turns(several: Path) -> None:
    report = check(asked(str(several), seconds=20.0, examples=120))
    assert report.cases_run < report.cases_planned == 240
    counts = [report.judged[f"{kernel} in {dtype}"] for kernel in ("first", "second") for dtype in report.contracts]
    assert min(counts) >= 1 and max(counts) - min(counts) <= 1


@pytest.mark.usefixtures("ticks")
def test_a_kernel_and_dtype_below_its_minimum_of_cases_is_inconclusive_and_named(several: Path) -> None:
    report = check(asked(str(several), seconds=17.0, examples=120))
    assert set(report.judged.values()) == {4}
    assert report.exit_code == 4 and {v.status for v in report.verdicts} == {Status.HOLDS}
    unmet = [f"{name} was judged on {count} of 60 cases, at least 5 expected" for name, count in report.judged.items()]
    assert [sentence for sentence in report.inconclusive() if "was judged on" in sentence] == unmet and len(unmet) == 4
    assert check(asked(str(several), examples=6)).exit_code == 0, "all that was planned was judged"


def test_of_each_dtype_the_first_case_has_the_decisive_properties_and_a_later_one_the_compilations() -> None:
    """And each property that applies to a case is judged on one."""
    target = shipped()["sdpa"]
    run = resolved(Request("sdpa", device="cpu", workers=0, compilations=True))
    (kernel,) = target.kernels
    for count in (1, 2, 3, 4, 9):
        cases = stream(run.family, kernel, examples=count)
        found = properties_on(run.properties.values(), kernel, cases)
        assert {"forward_matches_the_oracle", "hvp_matches_the_oracle"} <= set(found[0])
        for dtype in {case.dtype for case in cases}:
            own = [(case, props) for case, props in zip(cases, found, strict=True) if case.dtype == dtype]
            due = {n for n, prop in run.properties.items() for case, _ in own if prop.applies(case, kernel) is None}
            assert due == {name for _, props in own for name in props}
            places = [n for n, (_, props) in enumerate(own) if "shared_memory_fits_each_architecture" in props]
            assert places == [min(2, len(own) - 1)]


COMPILES = "shared_memory_fits_each_architecture"


@pytest.mark.parametrize(
    ("fields", "is_asked"),
    [
        ({}, False),
        ({"property": "*,f*"}, False),
        ({"require": ("*",)}, False),
        ({"property": "vjp*"}, False),
        ({"property": "*,shared_memory*"}, True),
        ({"property": COMPILES}, True),
        ({"require": ("shared*",)}, True),
        ({"compilations": True}, True),
        ({"compilations": True, "not_property": ("shared*",)}, False),
        ({"compilations": True, "property": "vjp*"}, False),
    ],
)
def test_compilations_are_judged_where_they_are_named_or_in_a_gate(fields: dict[str, Any], is_asked: bool) -> None:
    run = resolved(Request("sdpa", device="cpu", workers=0, **fields))
    assert (COMPILES in run.properties) is is_asked
    assert run.unasked == ((COMPILES,) if not is_asked and fields.get("property", "*") in ("*", "*,f*")
                           and "not_property" not in fields else ())  # fmt: skip


def test_a_report_says_which_properties_are_left_to_the_gate() -> None:
    """Only of a kernel that names compilations."""
    report = check(Request("sdpa", device="cpu", workers=0, examples=1, seconds=1e-3))
    (note,) = [note for note in report.notes if note.startswith("left to gradoracle gate: ")]
    assert COMPILES in note and "--property NAME" in note
    assert not any("left to" in note for note in check(asked(f"{FILE}:right", property="*", seconds=1e-3)).notes)


def test_a_violation_of_a_compilation_is_replayed_by_its_name() -> None:
    with running(Request("sdpa", device="cpu", workers=0, compilations=True, examples=2)) as run:
        header = header_of(plan(run.subjects), run.executor, has_file=False)
    (kernel,) = header.kernels
    case, violated = Case("sdpa", {"T": 1}), Finding("o", Outcome.VIOLATED, "exact")
    for name, replayed in ((FORWARD, ""), (COMPILES, f" --property {COMPILES}")):
        result = PropertyResult(name, Status.VIOLATED, (violated,))
        judged = Judged(CaseRecord(0, kernel, case.line(), (result,)), result)
        found = first_failure(header, VerdictKey(name, kernel, "float32"), judged).counterexample
        assert found is not None
        assert found.command == (f"gradoracle replay '{found.case}'{replayed}" if replayed else "")


def test_the_time_of_a_run_ends_a_call_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "GRACE", 0.5)
    begun = time.monotonic()
    report = check(asked(f"{FILE}:hangs", workers=1, seconds=5.0, call_seconds=50.0, examples=30))
    assert time.monotonic() - begun < 15.0
    assert report.exit_code == 4 and report.cases_run < report.cases_planned
    ((name, seconds),) = report.stopped.items()
    assert name == "hangs: forward" and seconds > 0.5
    assert any(s.startswith(f"{name} ") for s in report.inconclusive())


def test_where_no_case_ended_it_is_said_which_kernel_took_the_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(execute, "GRACE", 0.5)
    file = tmp_path / "slow.py"
    file.write_text(SEVERAL.format(seconds=100))
    words = ["check", f"{file}:second", "--device", "cpu", "--seconds", "5", "--workers", "2"]
    assert main.run(words) == 4
    out = " ".join(capsys.readouterr().out.split())
    assert "0 of 126 planned cases" in out and "second: forward " in out


@pytest.mark.usefixtures("ticks")
def test_no_property_of_a_case_is_begun_when_the_time_is_up() -> None:
    """The case that runs then is judged by those that came before."""
    report = check(asked(f"{FILE}:right", property="*", seconds=3.0, examples=30))
    judged = [verdict.property_name for verdict in report.verdicts if verdict.cases_held]
    assert report.cases_run == 2 and 2 <= len(judged) <= 5


def test_the_first_failure_is_shown_when_it_is_found_and_made_smaller_at_the_end() -> None:
    told = Told()
    report = check(asked(f"{FILE}:loses_its_tail", examples=12), told)
    ((after, verdict),) = told.failures
    assert after < 12 and verdict.status is Status.VIOLATED and verdict.counterexample is not None
    assert verdict.counterexample.command.startswith("gradoracle replay ") or not verdict.counterexample.command
    (final,) = report.verdicts
    assert final.counterexample is not None and final.counterexample.case != verdict.counterexample.case
    assert final.counterexample.shrunk_from == verdict.counterexample.case
    assert told.cases[-1][:3] == (12, 1, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_fail_fast_stops_at_the_first_failure(workers: int) -> None:
    fields: dict[str, Any] = {"property": "[fv]*_match*", "examples": 60, "workers": workers, "fail_fast": True}
    report = check(asked(f"{FILE}:has_a_wrong_backward", **fields))
    assert report.exit_code == 1 and report.cases_run < 60
    assert report.interrupted.endswith(f" first failure, after {report.cases_run} of 60 cases")
    right = check(asked(f"{FILE}:right", **fields))
    assert right.exit_code == 0 and right.cases_run == 60


def test_the_command_line_fails_fast_and_shows_the_first_failure(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", f"{FILE}:has_a_wrong_backward", "--device", "cpu", "--workers", "0", "--fail-fast"]
    assert main.run([*words, "--property", "vjp*"]) == 1
    out, err = capsys.readouterr()
    (headline,) = [line for line in err.splitlines() if "first failure: " in line]
    assert all(word in headline.split() for word in ("vjp_matches_the_oracle", "has_a_wrong_backward", "float32"))
    assert "gradoracle replay 'case:1 " in err and "stopped at the first failure" in " ".join(out.split())


def test_a_definition_that_raises_is_a_mistake_whoever_runs_the_cases(tmp_path: Path) -> None:
    file = tmp_path / "raises.py"
    file.write_text(SEVERAL.format(seconds=0).replace("    return 2 * x\n\n\n@gradoracle.kernel(doubled)\ndef first",
                                                      "    raise ValueError('not yet')\n\n\n"
                                                      "@gradoracle.kernel(doubled)\ndef first"))  # fmt: skip
    for workers in (0, 1, 2):
        with pytest.raises(UsageError, match="not yet"):
            check(asked(f"{file}:first", workers=workers))


def test_the_time_of_a_command_is_shared_by_its_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take an equal part of what is left; where none is left the others say that they judged nothing."""
    takes = {"lse": 2.0, "sdpa": 30.0}
    clock, given = Ticks(), []

    def checked(request: Request, progress: Any, file: Any) -> Report:
        given.append(request.seconds)
        clock.now += takes[request.target]
        return Report(request.target, "", [], "cpu", 0, {}, {}, cases_planned=1, cases_run=1)

    monkeypatch.setattr(clock, "monotonic", lambda: clock.now)
    monkeypatch.setattr(commands, "time", clock)
    monkeypatch.setattr(engine, "check", checked)
    main.run(["check", "lse", "sdpa", "--seconds", "20"], begun=-4.0)
    assert given == [8.0, 14.0]
    main.run(["check", "sdpa", "lse", "--seconds", "20"], begun=clock.now)
    assert given[2:] == [10.0, 1e-3]


def test_where_no_case_is_begun_in_time_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", f"{FILE}:right", "--device", "cpu", "--seconds", "0.01", "--workers", "2"]
    assert main.run(words) == 4
    out = " ".join(capsys.readouterr().out.split())
    assert f"because {execute.GETTING_READY} " in out
