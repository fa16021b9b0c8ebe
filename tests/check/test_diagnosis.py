"""Diagnosis: the causes that a report names, and kernels of which it names none."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

import pytest
from places import TESTS

from gradoracle.check import minimise
from gradoracle.check.diagnosis.diagnosis import Symptom, diagnose, of_results, of_verdicts
from gradoracle.check.faults import diagnosed, grouped
from gradoracle.check.properties import universal_properties
from gradoracle.check.run import check, replay
from gradoracle.model.derivative import Derivative
from gradoracle.model.fault import CAUSES, UNKNOWN
from gradoracle.model.finding import EditedDefinition, Finding, Outcome
from gradoracle.model.job import PropertyResult
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Counterexample, Report, Status, Verdict
from gradoracle.project.request import Request
from gradoracle.project.target import shipped
from gradoracle.report.formats import render
from gradoracle.report.shown_fault import shown_faults

FILE = TESTS / "check" / "faulty.py"
FORWARD, VJP = "forward_matches_the_oracle", "vjp_matches_the_oracle"
NUMBERS = "[fv]*_matches_the_oracle"


@functools.cache
def checked(kernel: str, property: str = NUMBERS, examples: int = 12) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minimise, "SHRINK_SECONDS", 600.0)
        patch.setattr(minimise, "SHRINK_SECONDS_IN_ALL", 3600.0)
        return check(Request(f"{FILE}:{kernel}", device="cpu", property=property, examples=examples, workers=0))


@pytest.mark.parametrize(
    ("kernel", "properties", "cause", "evidence"),
    [
        ("sign", NUMBERS, "sign", "with the sign of dk changed"),
        ("ratio", NUMBERS, "ratio", "if dq is multiplied by sqrt(D)"),
        ("term", NUMBERS, "term", "without mul(softmax(...), sum(...))"),
        ("operands", NUMBERS, "operands", "instead of"),
        ("comparison", NUMBERS, "comparison", "with > instead of >="),
        ("offset", "[fvo]*_[mp]*", "offset", "only offsets_past_2_31_give_the_same is violated"),
    ],
)
def test_an_edit_of_the_definition_that_two_cases_show_is_named(
    kernel: str, properties: str, cause: str, evidence: str
) -> None:
    report = checked(kernel, properties)
    (found, *_) = shown_faults(report)
    assert (found.diagnosis.cause, found.diagnosis.sentence) == (cause, CAUSES[cause]), found.diagnosis
    assert evidence in found.diagnosis.evidence


@pytest.mark.parametrize(
    "kernel", ["unclear", "tail", "slice_", "transpose", "shift", "sum_", "dtype", "nearly", "thrice", "rounded_factor"]
)
def test_no_edit_of_the_definition_no_cause(kernel: str) -> None:
    report = checked(kernel)
    assert shown_faults(report) and all(failure.diagnosis == UNKNOWN for failure in shown_faults(report))
    assert "  likely " not in render([report], "terminal")


@pytest.mark.parametrize("properties", [NUMBERS, "[fvo]*_[mp]*"])
def test_the_correct_kernel_holds_on_the_same_properties(properties: str) -> None:
    report = checked("right", properties)
    assert report.exit_code == 0 and not shown_faults(report)
    assert diagnose(of_verdicts(report.verdicts)) == UNKNOWN


def test_one_case_names_nothing() -> None:
    (found, *_) = shown_faults(checked("sign"))
    assert found.diagnosis.cause == "sign" and found.lead.counterexample is not None
    (again, *_) = shown_faults(replay(found.lead.counterexample.case, property=NUMBERS, workers=0))
    assert again.lead.property_name == found.lead.property_name and again.diagnosis == UNKNOWN


def test_the_terminal_report_and_json_show_it_once_a_fault() -> None:
    report = checked("sign")
    said = f"  likely   {CAUSES['sign']}; "
    assert render([report], "terminal").count(said) == len(shown_faults(report)) == 1
    (fault,) = json.loads(render([report], "json"))["reports"][0]["faults"]
    assert (
        fault["diagnosis"]["cause"] == "sign"
        and fault["verdicts"][0]["property"] == shown_faults(report)[0].lead.property_name
    )


def finding(tensor: str = "o", **fields: object) -> Finding:
    """A wrong tensor of a kernel: gradients are called d and something, all others are outputs."""
    derivative = Derivative.VJP if tensor.startswith("d") else Derivative.FORWARD
    return Finding(tensor, Outcome.VIOLATED, "local", 9.0, **{"elements": 64, "derivative": derivative, **fields})


PROPERTIES = {prop.name: prop for prop in universal_properties()}
SIGN, TERM = EditedDefinition("with the sign of s changed", "sign"), EditedDefinition("without s", "term")


def broken(property_name: str, *findings: Finding, edited: EditedDefinition | None = None) -> Symptom:
    own = PROPERTIES[property_name]
    return Symptom(property_name, own.kind, own.cause, findings or (finding(),), edited or EditedDefinition())


OFFSETS = "offsets_past_2_31_give_the_same"
FACTS = ["programs_of_a_launch_do_not_race", "runs_are_bit_identical", "any_layout_of_inputs_is_right_or_refused"]


@pytest.mark.parametrize(
    ("cause", "symptoms"),
    [
        *(("", [broken(property_name), broken(FORWARD, edited=SIGN)]) for property_name in FACTS),
        ("", [broken(VJP, finding("dq", malformed=True), edited=SIGN)]),
        ("sign", [broken(FORWARD, edited=SIGN)]),
        ("sign", [broken(FORWARD, edited=SIGN), broken(FORWARD), broken(FORWARD, edited=SIGN)]),
        ("", [broken(FORWARD, edited=SIGN), broken(FORWARD, edited=TERM)]),
        ("sign", [broken(FORWARD, edited=SIGN), broken(VJP, finding("dq"), edited=TERM)]),
        ("", [broken(FORWARD), broken(VJP, finding("dq"), edited=TERM)]),
        ("", [broken("tail_and_padding_invariance", edited=SIGN)]),
        ("offset", [broken(OFFSETS)]),
        ("", [broken(OFFSETS, finding(cause="layout"))]),
        ("", [broken(OFFSETS), broken(FORWARD)]),
        ("", []),
    ],
)
def test_a_cause_is_named_where_what_is_wrong_first_has_one(cause: str, symptoms: list[Symptom]) -> None:
    found = diagnose(symptoms)
    assert found.cause == cause and bool(found.evidence) == bool(cause), found


@pytest.mark.parametrize(("severity", "cause"), [(Severity.WRONG, "sign"), (Severity.PRECISION, "")])
def test_lost_precision_has_no_cause(severity: Severity, cause: str) -> None:
    shown = Counterexample("c", (finding(),), edited_definition=SIGN)
    verdict = Verdict(FORWARD, "k", "float32", Status.VIOLATED, counterexample=shown)
    verdict.severity, verdict.kind = severity, PROPERTIES[FORWARD].kind
    (fault,) = diagnosed(grouped([verdict]), [verdict])
    assert fault.diagnosis.cause == cause


def test_the_results_of_several_cases_are_one_symptom_a_property() -> None:
    held = PropertyResult(FORWARD, Status.HOLDS, (replace(finding(), outcome=Outcome.HOLDS),))
    wrong = PropertyResult(VJP, Status.VIOLATED, (replace(finding("dv"), outcome=Outcome.HOLDS), finding("dk")))
    unchecked = PropertyResult("no_memory_is_left_unwritten", Status.NOT_CHECKED, reason="needs a GPU")
    results = [replace(wrong, edited=(TERM, SIGN)), held, replace(wrong, edited=(SIGN,)), unchecked]
    (symptom,) = of_results(results, PROPERTIES)
    assert (symptom.property_name, len(symptom.findings), symptom.edited) == (VJP, 2, SIGN)
    assert diagnose([symptom]).cause == "sign" and diagnose(of_results(results[:2], PROPERTIES)) == UNKNOWN


def test_what_properties_point_at_is_a_cause() -> None:
    properties = [
        *universal_properties(),
        *(prop for target in shipped().values() for prop in target.family.properties),
    ]
    assert {prop.cause for prop in properties} - {""} <= set(CAUSES)
