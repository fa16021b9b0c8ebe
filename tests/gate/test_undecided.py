"""A violation that may be wrong or only imprecise, in a gate: the base or the contract decides, else it is open."""

from __future__ import annotations

import datetime

import pytest
from gate.answers import answer, results

from gradoracle.gate.compare import compare
from gradoracle.model.comparison import Comparison, Kind, Weight
from gradoracle.model.fault import Fault, VerdictKey
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Counterexample, Report, Status, Verdict
from gradoracle.report.terminal import render

WHY = "cannot be widened: aten.view.dtype reads the bits of a float"


@pytest.mark.parametrize(
    ("before", "declared", "weight", "code"),
    [
        (Status.HOLDS, False, Weight.RED, 1),
        (Status.VIOLATED, False, Weight.NOTE, 0),
        (Status.NOT_CHECKED, False, Weight.OPEN, 4),
        (Status.NOT_CHECKED, True, Weight.RED, 1),
        (None, False, Weight.OPEN, 4),
        (None, True, Weight.RED, 1),
    ],
)
def test_what_is_undecided_is_red_only_where_the_base_or_the_contract_decides(
    before: Status | None, declared: bool, weight: Weight, code: int
) -> None:
    wrong = Finding("y", Outcome.VIOLATED, "local", 9.0)
    shown = Counterexample("case:1 k.py", (wrong,), severity=Severity.UNDECIDED, undecided=WHY)
    verdict = Verdict("forward", "k", "float32", Status.VIOLATED, cases_violated=1, counterexample=shown)
    verdict.severity, verdict.severity_note, verdict.declared = Severity.UNDECIDED, WHY, declared
    other = Verdict("second_call", "k", "float32", Status.HOLDS, cases_held=1)
    faults = [Fault((VerdictKey("forward", "k", "float32"),), severity=Severity.UNDECIDED)]
    report = Report("k.py", "f", ["k"], "cpu", 0, {}, {}, [verdict, other], cases_planned=1, cases_run=1, faults=faults)
    head = answer({0: results(forward="violated")}, kernel="k", report=report)
    base = None if before is None else answer({0: results(forward=before.value)}, kernel="k")
    lines = compare(base, head, [], datetime.date(2026, 11, 27))
    assert [(line.kind, line.weight) for line in lines] == [(Kind.VIOLATED, weight)]
    report.comparison = Comparison("main", lines=lines)
    assert report.exit_code == code
    text = " ".join(render([report], verbose=True).split())
    assert f"{ {Weight.RED: '✗', Weight.OPEN: '?', Weight.NOTE: '·'}[weight] } VIOLATED forward" in text
    assert WHY in text
