"""A violation that may be wrong or only imprecise: what decides it, and that it is not checked where nothing does."""

from __future__ import annotations

from typing import Any

import pytest

from gradoracle.check.completeness import shortfall
from gradoracle.check.faults import diagnosed, grouped
from gradoracle.check.severity import leave_open
from gradoracle.check.tally import Judged, Results
from gradoracle.model.case import Case
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.job import PropertyResult
from gradoracle.model.ledger import CaseRecord
from gradoracle.model.property import PropertyKind
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Status, Verdict
from gradoracle.report import github, junit, markdown, sarif
from gradoracle.report.summary import kept
from gradoracle.report.terminal import render
from tests.check.test_severity import FORWARD, checked, of_severity, severities


def test_what_cannot_be_widened_is_not_checked_and_the_run_is_inconclusive() -> None:
    report = checked("reads_bits", FORWARD)
    (verdict,) = report.verdicts
    assert verdict.severity is Severity.UNDECIDED and "widened: aten.view.dtype" in verdict.severity_note
    assert verdict.status is Status.NOT_CHECKED and verdict.cases_violated and report.exit_code == 4
    last = report.inconclusive()[-1]
    assert last.startswith("out of reads_bits in bfloat16") and FORWARD in last
    assert last.endswith(f": {verdict.severity_note}")
    for verbose in (False, True):
        text = " ".join(render([report], verbose=verbose).split())
        assert f"? NOT CHECKED {FORWARD} reads_bits, bfloat16, {verdict.cases_violated} of 24 cases" in text
        assert "severity undecided" in text and "cannot be widened" in text
    assert not kept(report)
    assert "::warning " in github.render([report]) and "::error " in github.render([report])  # the fault, and the run
    assert '"level": "warning"' in sarif.render([report]) and "? NOT CHECKED" in markdown.render([report])
    assert ' failures="0"' in junit.render([report]) and "violated as written" in junit.render([report])


def test_what_is_undecided_counts_where_both_wrong_and_imprecise_do() -> None:
    declared = checked("declares_and_reads_bits", FORWARD)
    (verdict,) = declared.verdicts
    assert declared.exit_code == 1 and verdict.status is Status.VIOLATED
    assert verdict.severity is Severity.UNDECIDED and verdict.declared
    text = " ".join(render([declared]).split())
    assert "either breaks bf16" in text and "cannot be widened" in text
    for fail_on, code in ((Severity.WRONG, 4), (Severity.PRECISION, 1), (Severity.ROBUSTNESS, 1)):
        assert checked("reads_bits", FORWARD, fail_on=fail_on).exit_code == code
    assert checked("declares_and_reads_bits", FORWARD, fail_on=Severity.WRONG).exit_code == 4


def test_an_error_that_no_preset_explains_is_wrong_though_nobody_can_widen_the_kernel() -> None:
    report = checked("reads_bits_and_is_wrong", FORWARD)
    assert severities(report) == {FORWARD: Severity.WRONG} and report.exit_code == 1
    text = " ".join(render([report]).split())
    assert "no preset of bfloat16" in text and "in float64: cannot be widened" in text


def left_open(**fields: Any) -> tuple[Verdict, ...]:
    """A violation that is undecided, and a verdict on the same tensor that is like it but for some fields."""
    verdict = of_severity("one", Severity.UNDECIDED)
    verdict.declared = False
    return verdict, Verdict(
        **{"property_name": "other", "kernel": "k", "dtype": "bfloat16", "status": Status.HOLDS, **fields}
    )


@pytest.mark.parametrize(
    ("decided", "fields", "is_decided"),
    [
        ("dx", {"kind": PropertyKind.ORACLE}, True),
        ("dx", {"kind": PropertyKind.DEFINITION, "status": Status.VIOLATED, "severity": Severity.PRECISION}, True),
        ("dx", {"kind": PropertyKind.DEFINITION, "status": Status.NOT_CHECKED}, False),
        ("dx", {"kind": PropertyKind.RELATION}, False),  # it holds of many wrong gradients
        ("dw", {"kind": PropertyKind.ORACLE}, False),
        ("dx", {"kind": PropertyKind.ORACLE, "dtype": "float32"}, False),
        ("dx", {"kind": PropertyKind.ORACLE, "kernel": "other"}, False),
        ("dx", {"kind": PropertyKind.ORACLE, "status": Status.VIOLATED, "severity": Severity.UNDECIDED}, False),
    ],
)
def test_a_run_is_inconclusive_only_where_no_other_property_decided_the_tensor(
    decided: str, fields: dict[str, Any], is_decided: bool
) -> None:
    verdicts = left_open(**fields)
    for verdict in verdicts:
        verdict.declared = False
    leave_open(verdicts, None)
    assert verdicts[0].is_open
    results = {v.key: Results(v.key) for v in verdicts}
    for own in results.values():
        found = PropertyResult("one", Status.HOLDS, (Finding(decided, Outcome.HOLDS, "local"),))
        own.add(Judged(CaseRecord(0, "k", Case("f", {"N": 1}).line(), (found,)), found))
    unmet = shortfall(verdicts, results, decisive=(), require=(), undefined=(), cases=3, sizes="")
    assert bool(unmet) is not is_decided


def test_what_is_left_open_takes_part_in_no_fault_that_others_decide() -> None:
    verdicts = [of_severity("one", Severity.UNDECIDED), of_severity("other", Severity.WRONG)]
    verdicts[0].declared = False
    faults = grouped(verdicts)
    leave_open(verdicts, None)
    (fault,) = diagnosed(faults, verdicts)
    assert [key.property_name for key in fault.verdicts] == ["other"] and fault.severity is Severity.WRONG
    verdicts[1].severity, verdicts[1].declared = Severity.UNDECIDED, False
    leave_open(verdicts, None)
    (fault,) = diagnosed(faults, verdicts)
    assert [key.property_name for key in fault.verdicts] == ["one", "other"] and fault.severity is Severity.UNDECIDED
