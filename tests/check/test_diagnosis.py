"""Diagnosis: for every cause a wrong kernel of which it is said, and kernels of which nothing is."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

import pytest
from places import TESTS
from sweeps import slow

from gradoracle.check import minimise
from gradoracle.check.diagnosis.diagnosis import NAMED, diagnose
from gradoracle.check.diagnosis.symptom import Symptom, of_results, of_verdicts
from gradoracle.check.faults import diagnosed, grouped
from gradoracle.check.properties import universal_laws
from gradoracle.check.run import check
from gradoracle.model.case import Case
from gradoracle.model.causes import CAUSES
from gradoracle.model.derivative import Derivative
from gradoracle.model.fault import UNKNOWN
from gradoracle.model.finding import NO_LIKENESS, Finding, Likeness, Outcome
from gradoracle.model.job import LawResult
from gradoracle.model.region import Extent, Region, Span
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Counterexample, Report, Status, Verdict
from gradoracle.project.request import Request
from gradoracle.project.target import shipped
from gradoracle.report.failure import failures
from gradoracle.report.formats import render

FILE = TESTS / "check" / "faulty.py"
FORWARD, VJP = "forward_matches_the_oracle", "vjp_matches_the_oracle"


@functools.cache
def checked(kernel: str, property: str = "[fv]*_matches_the_oracle", examples: int = 12) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minimise, "SHRINK_SECONDS", 600.0)
        patch.setattr(minimise, "SHRINK_SECONDS_IN_ALL", 3600.0)
        return check(Request(f"{FILE}:{kernel}", device="cpu", property=property, examples=examples, workers=0))


KERNELS = {
    "tail": "[fv]*_matches_the_oracle",
    "slice_": "[fv]*_matches_the_oracle",
    "ratio": "[fv]*_matches_the_oracle",
    "sign": "[fv]*_matches_the_oracle",
    "transpose": "[fv]*_matches_the_oracle",
    "shift": "[fv]*_matches_the_oracle",
    "sum_": "[fv]*_matches_the_oracle",
    "dtype": "[fv]*_matches_the_oracle",
    "stale": "[fn]*_[muo]*",
    "layout": "[fva]*_[lm]*",
    "term": "[fv]*_matches_the_oracle",
    "range_": "[fv]*_matches_the_oracle",
    "offset": "[fvo]*_[mp]*",
    "access": "[fvi]*_[am]*",
}
RARE = ("sum_", "range_")  # whose cause shows on few cases
ORDINARY = ("tail", "ratio", "transpose", "stale", "term", "access")


def test_every_cause_has_a_kernel() -> None:
    assert {name.rstrip("_") for name in KERNELS} == set(CAUSES) > set(NAMED)


@pytest.mark.parametrize(
    ("kernel", "examples"),
    [
        *((kernel, 12) if kernel in ORDINARY else slow(kernel, 24 if kernel in RARE else 12) for kernel in KERNELS),
        *(slow(kernel, 24) for kernel in KERNELS if kernel not in RARE),
    ],
)
def test_a_cause_is_named_where_it_is_rarely_another_and_else_none(kernel: str, examples: int) -> None:
    report, cause = checked(kernel, KERNELS[kernel], examples), kernel.rstrip("_")
    found = [failure.diagnosis for failure in failures(report)]
    if cause not in NAMED:
        assert found and found[0] == UNKNOWN, found  # of the fault that leads
        return
    assert found and found[0].cause == cause, found
    assert found[0].sentence == CAUSES[found[0].cause] and found[0].evidence
    assert diagnose(of_verdicts(report.verdicts)).cause == cause


@pytest.mark.parametrize("laws", sorted(set(KERNELS.values())))
def test_the_correct_kernel_holds_on_the_same_laws(laws: str) -> None:
    report = checked("right", laws)
    assert report.exit_code == 0 and not failures(report)
    assert diagnose(of_verdicts(report.verdicts)) == UNKNOWN


def test_of_values_that_have_nothing_to_do_with_the_true_ones_nothing_is_said() -> None:
    report = checked("unclear")
    (failure,) = failures(report)
    assert failure.diagnosis == UNKNOWN and "  likely " not in render([report], "terminal")


def test_the_terminal_report_and_json_show_it_once_a_fault() -> None:
    report = checked("sign")
    said = f"  likely   {CAUSES['sign']}; "
    assert render([report], "terminal").count(said) == len(failures(report)) == 1
    (fault,) = json.loads(render([report], "json"))["reports"][0]["faults"]
    assert fault["diagnosis"]["cause"] == "sign" and fault["verdicts"][0]["law"] == failures(report)[0].lead.law


@pytest.mark.parametrize(
    ("kernel", "cause", "shown"),
    [("nearly", "ratio", "1.00098"), ("nearly_at_the_end", "ratio", "1.01"), ("rounded_factor", "dtype", "")],
)
def test_a_factor_near_1_is_a_rounding_only_where_it_is_another_on_each_case(
    kernel: str, cause: str, shown: str
) -> None:
    (first, *_) = failures(checked(kernel))
    assert first.diagnosis.cause == cause and shown in first.diagnosis.evidence, first.diagnosis


@pytest.mark.parametrize(
    ("factors", "cause"),
    [
        ((1.001, 1.00101, 1.00099), "ratio"),
        ((0.998, 0.99801), "ratio"),
        ((1.001, 0.999), "dtype"),
        ((1.001, 1.002, 1.001), "dtype"),
        ((1.001,), "dtype"),
        ((1.001, None), "dtype"),
    ],
)
def test_formulas_of_several_cases_agree_on_a_factor_that_is_the_same(
    factors: tuple[float | None, ...], cause: str
) -> None:
    formulas = [Likeness(f"with s times {factor}", "dtype", factor) for factor in factors]
    assert minimise.agreed([*formulas, NO_LIKENESS]).cause == cause


CASE = Case("attend", {"B": 2, "H": 4, "G": 2, "T": 9, "M": 9, "D": 4})


def finding(tensor: str = "o", **fields: object) -> Finding:
    """A wrong tensor of a kernel: gradients are called d and something, all others are outputs."""
    derivative = Derivative.VJP if tensor.startswith("d") else Derivative.FORWARD
    return Finding(tensor, Outcome.VIOLATED, "local", 9.0, **{"elements": 64, "derivative": derivative, **fields})


def only(extent: Extent, first: int, last: int, size: int = 9) -> Region:
    return Region(spans=(Span("T", extent, first, last, last - first + 1, size),))


def broken(law: str, *findings: Finding, dtype: str = "float32", **fields: object) -> Symptom:
    own = LAWS.get(law)
    declared = {"kind": own.kind, "cause": own.cause} if own is not None else {}
    return Symptom(law, dtype, True, findings or (finding(),), **{**declared, **fields})  # type: ignore[arg-type]


def held(law: str) -> Symptom:
    return Symptom(law, "float32", False, kind=LAWS[law].kind)


LAWS = {law.name: law for law in universal_laws()}
MALFORMED = finding("dq", malformed=True, message="dq is None: q takes part in the definition")
TAIL, LOST = finding(region=only(Extent.TAIL, 7, 8)), finding(lost=True, pattern="every element; NaN")
FACTS = ["programs_of_a_launch_do_not_race", "runs_are_bit_identical", "any_layout_of_inputs_is_right_or_refused"]
RATIO = Likeness("with s times 1.01", "ratio", 1.01)


@pytest.mark.parametrize(
    ("cause", "symptoms"),
    [
        *(("", [broken(law), broken(FORWARD, finding(cause="sign"))]) for law in FACTS),
        ("", [broken(VJP, MALFORMED)]),
        ("dtype", [broken(FORWARD, preset="tf32")]),
        ("ratio", [broken(FORWARD, preset="tf32", formula=RATIO)]),
        (
            "ratio",
            [
                broken(FORWARD, preset="tf32", formula=RATIO),
                *[broken(FORWARD, preset="tf32", dtype=dtype) for dtype in ("float16", "bfloat16")],
            ],
        ),
        ("ratio", [broken(FORWARD, *[finding(cause="ratio", ratio=r) for r in (1.01, 1.0101)], preset="tf32")]),
        ("dtype", [broken(FORWARD, *[finding(cause="ratio", ratio=r) for r in (1.01, 0.99)], preset="tf32")]),
        ("", [broken(FORWARD, TAIL, TAIL, preset="tf32")]),
        ("dtype", [broken(FORWARD, TAIL, preset="tf32")]),
        ("dtype", [broken(FORWARD, *[finding(region=only(Extent.ONE, n, n)) for n in (1, 2)], preset="tf32")]),
        ("dtype", [broken(FORWARD, finding(cause="dtype"))]),
        ("", [broken(FORWARD, finding(cause="dtype"), finding("l"))]),
        ("dtype", [broken(VJP, finding("dq", cause="dtype"), finding("dk", cause="dtype"), finding("dv"))]),
        ("", [broken(VJP, *[finding("dq", cause="dtype")] * 3, finding("dv", cause="sign"))]),
        ("dtype", [broken(FORWARD, dtype="float16"), held(FORWARD)]),
        ("", [broken(FORWARD, LOST, dtype="float16"), held(FORWARD)]),
        ("sign", [broken(FORWARD, formula=Likeness("with the sign of s changed", "sign"))]),
        ("", [broken(FORWARD, formula=Likeness("without the term s", "term"))]),
        ("ratio", [broken(VJP, finding("dk", cause="ratio", ratio=3.0))]),
        ("sign", [broken(VJP, finding("dq"), finding("dk", cause="sign"), finding("dv", cause="sign"))]),
        ("", [broken(VJP, finding("dq"), finding("dk", cause="sign"), finding("dv"))]),
        ("sign", [broken(FORWARD, finding(cause="sign")), broken(VJP, finding("dq", cause="term"))]),
        ("", [broken(FORWARD, TAIL)]),
        ("", [broken("tail_and_padding_invariance"), held(FORWARD)]),
        ("offset", [broken("offsets_past_2_31_give_the_same", TAIL), held(FORWARD)]),
        ("", [broken("offsets_past_2_31_give_the_same", TAIL), broken(FORWARD, TAIL)]),
        ("", [Symptom(FORWARD, "float32", True, kind=LAWS[FORWARD].kind)]),
        ("", [held(FORWARD)]),
        ("", []),
    ],
)
def test_signs_point_at_a_cause_or_at_none(cause: str, symptoms: list[Symptom]) -> None:
    found = diagnose(symptoms)
    assert found.cause == cause and bool(found.evidence) == bool(cause), found


@pytest.mark.parametrize(
    ("cause", "severity", "is_named"),
    [
        ("ratio", Severity.WRONG, True),
        ("ratio", Severity.PRECISION, False),  # a missing factor does not go away when widened
        ("sign", Severity.PRECISION, False),
        ("dtype", Severity.PRECISION, True),
        ("dtype", Severity.WRONG, False),
    ],
)
def test_no_cause_is_named_that_the_severity_contradicts(cause: str, severity: Severity, is_named: bool) -> None:
    wrong = tuple(finding(name, cause=cause, ratio=1.01) for name in ("o", "l"))
    verdict = Verdict(FORWARD, "k", "float32", Status.VIOLATED, counterexample=Counterexample("c", wrong))
    verdict.severity, verdict.kind = severity, LAWS[FORWARD].kind
    (fault,) = diagnosed(grouped([verdict]), [verdict])
    assert fault.diagnosis.cause == (cause if is_named else "")


def test_the_results_of_one_case_are_symptoms_too() -> None:
    results = [
        LawResult(FORWARD, Status.HOLDS, (replace(finding(), outcome=Outcome.HOLDS),)),
        LawResult(VJP, Status.VIOLATED, (replace(finding("dv"), outcome=Outcome.HOLDS), finding("dk", cause="sign"))),
        LawResult("no_memory_is_left_unwritten", Status.NOT_CHECKED, reason="needs a GPU"),
    ]
    symptoms = of_results(results, CASE, LAWS)
    assert [(s.law, s.broken, len(s.findings)) for s in symptoms] == [(FORWARD, False, 0), (VJP, True, 1)]
    assert diagnose(symptoms).cause == "sign"


def test_what_laws_point_at_is_a_cause() -> None:
    laws = [*universal_laws(), *(law for target in shipped().values() for law in target.family.properties)]
    assert {law.cause for law in laws} - {""} <= set(CAUSES)
