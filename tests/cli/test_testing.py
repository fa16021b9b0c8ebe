"""The pytest entry: verdicts become outcomes of items, a group shares one run, anybody's kernel becomes a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jaxtyping import Float
from places import ROOT
from programs import python
from torch import Tensor

import gradoracle
from gradoracle.cli import testing
from gradoracle.cli.testing import Item, JudgeError, NotRun
from gradoracle.model.errors import UsageError
from gradoracle.model.finding import Finding, Outcome, Worst
from gradoracle.model.verdict import Counterexample, Report, Status, Verdict
from gradoracle.project.request import Request

ROOT = ROOT
CASE = "case:1 kernels.py:double cpu float32 family=doubled B=1 N=2 seed=3"


@gradoracle.family
def doubled(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """2 x."""
    return 2 * x


@gradoracle.kernel(doubled)
def double(x: Tensor) -> Tensor:
    """2 x, declared."""
    return x + x


def undeclared(x: Tensor) -> Tensor:
    """2 x, not declared."""
    return x + x


def _finding() -> Finding:
    worst = Worst((0, 1), 2.5, 2.0, 99.0)
    return Finding("o", Outcome.VIOLATED, "local", 12.5, 99.0, 1e-6, "1 of 2 elements are wrong", worst, "only N = 1")


VERDICTS = {
    "holds": Verdict("holds", "double", "float32", Status.HOLDS, cases_held=3),
    "is_violated": Verdict(
        "is_violated", "double", "float32", Status.VIOLATED, cases_violated=1, cases_held=2,
        counterexample=Counterexample(CASE, (_finding(),)),
    ),
    "crashes": Verdict(
        "crashes", "double", "float32", Status.CRASHED, cases_crashed=1,
        counterexample=Counterexample(CASE, (), message="vjp: killed by signal 11"),
    ),
    "is_an_error": Verdict(
        "is_an_error", "double", "float32", Status.ERROR, cases_error=3,
        counterexample=Counterexample(CASE, (), message="ZeroDivisionError: our own"),
    ),
    "is_refused": Verdict("is_refused", "double", "float32", Status.REFUSED, reasons={"ValueError: N is 2": 3}),
    "is_not_checked": Verdict("is_not_checked", "double", "float32", Status.NOT_CHECKED, reasons={"needs a GPU": 3}),
    "is_half_decided": Verdict(
        "is_half_decided", "double", "float32", Status.HOLDS, cases_held=3, undecided={"dx": "budget too wide"}
    ),
}  # fmt: skip


def _report(run: int = 3, planned: int = 3) -> Report:
    return Report(
        "kernels.py", "doubled", ["double"], "cpu", 0, {"float32": "ieee32"}, {}, list(VERDICTS.values()),
        cases_planned=planned, cases_run=run,
    )  # fmt: skip


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that were run; every run gives the same report."""
    asked: list[Request] = []

    def check(request: Request) -> Report:
        asked.append(request)
        return _report()

    monkeypatch.setattr(testing, "check", check)
    monkeypatch.setattr(testing, "_runs", {})
    return asked


def _item(property_name: str, target: str = "kernels.py") -> Item:
    return Item(Request(target, dtypes=("float32",), examples=3), "double", "float32", property_name)


def test_a_property_that_holds_passes_and_a_group_runs_once(runs: list[Request]) -> None:
    _item("holds").judge()
    _item("holds").judge()
    assert len(runs) == 1
    _item("holds", "others.py").judge()
    assert [request.target for request in runs] == ["kernels.py", "others.py"]


def test_a_violation_fails_with_the_text_of_the_terminal_report(runs: list[Request]) -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        _item("is_violated").judge()
    text = str(failure.value)
    (finding,) = text.split("\n  o ")[1:]
    assert text.startswith("violated is_violated ") and "double in float32" in text and "1 of 3 cases" in text
    for fact in ("[local]", "1 of 2 elements are wrong", "12.5", "[0, 1]", "got 2.5", "true 2", "99 sigma"):
        assert fact in finding, text
    assert "only N = 1" in text and f"gradoracle replay '{CASE}'" in text


def test_a_crash_fails(runs: list[Request]) -> None:
    with pytest.raises(pytest.fail.Exception, match="killed by signal 11"):
        _item("crashes").judge()


def test_an_error_of_gradoracle_is_an_error_and_no_failure(runs: list[Request]) -> None:
    with pytest.raises(JudgeError, match="ZeroDivisionError: our own"):
        _item("is_an_error").judge()


@pytest.mark.parametrize(
    ("property_name", "reason"),
    [
        ("is_refused", r"refused: ValueError: N is 2 \(3 cases\)"),
        ("is_not_checked", r"not checked: needs a GPU \(3 cases\)"),
        ("is_half_decided", "not checked: no float32 case decides dx: budget too wide"),
        ("applies_nowhere", "not checked: it applies to none of the 3 float32 cases"),
    ],
)
def test_what_was_not_checked_is_skipped_with_its_reason(runs: list[Request], property_name: str, reason: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=reason):
        _item(property_name).judge()


def test_a_property_that_did_not_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "_runs", {})
    monkeypatch.setattr(testing, "check", lambda request: _report(run=1))
    with pytest.raises(NotRun, match="has no verdict: 1 of 3 cases were judged"):
        _item("applies_nowhere").run()
    _item("holds").judge()


def test_a_run_that_fails_fails_for_every_item_and_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def check(request: Request) -> Report:
        asked.append(request)
        raise UsageError("no such thing")

    monkeypatch.setattr(testing, "_runs", {})
    monkeypatch.setattr(testing, "check", check)
    for property_name in ("holds", "is_violated"):
        with pytest.raises(UsageError):
            _item(property_name).judge()
    assert len(asked) == 1


def test_testcase_makes_one_item_a_property_and_dtype() -> None:
    test = gradoracle.testcase(double, dtypes=("float32", "float64"), examples=5, seed=7)
    (mark,) = test.pytestmark  # type: ignore[attr-defined]
    params = mark.args[1]
    names = {param.id for param in params}
    assert "double-float32-vjp_matches_the_oracle" in names and "double-float64-vjp_matches_the_oracle" in names
    assert len(names) == len(params)
    groups = {param.marks[0].args[0] for param in params}
    target = f"{Path(__file__).resolve()}:double"
    assert groups == {f"{target} float32", f"{target} float64"}
    request = params[0].values[0].request
    assert (request.target, request.examples, request.seed, request.family) == (target, 5, 7, None)


def test_testcase_takes_a_plain_function_with_its_family() -> None:
    test = gradoracle.testcase(undeclared, family=doubled, dtypes=("float32",), property="vjp_matches*")
    (param,) = test.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert param.values[0].request.family == f"{Path(__file__).resolve()}:doubled"


@pytest.mark.parametrize(
    ("kernel", "arguments", "message"),
    [
        (lambda x: x, {"family": doubled}, "expected a kernel that is a name of the module"),
        (undeclared, {"family": "nothing"}, "no family 'nothing'"),
        (double, {"example": 3}, "was given example; expected fields of"),
        (double, {"examples": 0}, "was given examples=0; expected examples from 1 on"),
    ],
)
def test_a_testcase_that_cannot_be_made_says_why(kernel: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gradoracle.testcase(kernel, **arguments)


USER_FILE = """
import gradoracle
from jaxtyping import Float
from torch import Tensor


@gradoracle.family
def scaled(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    return x * w


@gradoracle.kernel(scaled)
def right(x, w):
    return x * w


@gradoracle.kernel(scaled)
def wrong(x, w):
    return x * (w * 1.01)


fields = dict(examples=2, dtypes=("float32",), property="[fv][oj][rp]*_matches_the_oracle")
test_right = gradoracle.testcase(right, **fields)
test_wrong = gradoracle.testcase(wrong, **fields)
"""


def test_a_users_file_runs_under_plain_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(USER_FILE)
    program = "import runpy; runpy.run_module('pytest', run_name='__main__', alter_sys=True)"
    done = python(program, "-q", "-p", "no:cacheprovider", "test_mine.py", cwd=tmp_path)
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "gradoracle replay 'case:1 " in done.stdout and "test_mine.py:wrong" in done.stdout
    assert done.returncode == 1
