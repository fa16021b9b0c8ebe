"""A kernel that gives a tensor of another shape after a change: no line of a gate for what that leaves open."""

from __future__ import annotations

import datetime

import pytest
from gate.answers import answer, results

from gradoracle.gate.compare import compare
from gradoracle.model.comparison import Kind, Weight
from gradoracle.model.job import PropertyResult
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Report, Status

TEXT = "y has shape (2, 3, 1), expected (2, 3)"


@pytest.mark.parametrize(("why", "lines"), [(Reason.MALFORMED, []), (Reason.RAISED, [(Kind.UNCHECKED, Weight.RED)])])
def test_what_a_malformed_tensor_leaves_open_has_no_line_of_its_own(
    why: Reason, lines: list[tuple[Kind, Weight]]
) -> None:
    left = PropertyResult("bits", Status.NOT_CHECKED, reason=TEXT, why=why)
    report = Report("k.py", "f", ["k"], "cpu", 0, {}, {}, cases_planned=1, cases_run=1)
    base = answer({0: results(forward="holds", bits="holds")}, kernel="k")
    head = answer({0: [*results(forward="violated"), left]}, kernel="k", report=report)
    found = compare(base, head, [], datetime.date(2026, 11, 26))
    assert [(line.kind, line.weight) for line in found] == lines
