"""Diagnosis: for every cause a wrong kernel of which it is said, and kernels of which nothing is."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

import pytest
from places import TESTS
from sweeps import slow

from gradoracle.check import minimise
from gradoracle.check.diagnosis.diagnosis import OF_LAWS, diagnose
from gradoracle.check.diagnosis.symptom import Symptom, of_results, of_verdicts
from gradoracle.check.judge_case import universal_laws
from gradoracle.check.run import check
from gradoracle.model.case import Case, Draw
from gradoracle.model.causes import CAUSES
from gradoracle.model.fault import UNKNOWN
from gradoracle.model.finding import NO_LIKENESS, Finding, Likeness, Outcome
from gradoracle.model.job import LawResult
from gradoracle.model.verdict import Report, Status
from gradoracle.project.request import Request
from gradoracle.project.target import shipped
from gradoracle.report.failure import failures
from gradoracle.report.formats import render

FILE = TESTS / "faulty.py"
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


def test_every_cause_has_a_kernel() -> None:
    assert {name.rstrip("_") for name in KERNELS} == set(CAUSES)


@pytest.mark.parametrize(
    ("kernel", "examples"),
    [
        *((kernel, 24 if kernel in RARE else 12) for kernel in KERNELS),
        *(slow(kernel, 24) for kernel in KERNELS if kernel not in RARE),
    ],
)
def test_the_cause_of_a_fault_is_named(kernel: str, examples: int) -> None:
    report = checked(kernel, KERNELS[kernel], examples)
    found = [failure.diagnosis for failure in failures(report)]
    assert found and found[0].cause == kernel.rstrip("_"), found
    assert found[0].sentence == CAUSES[found[0].cause] and found[0].evidence
    assert diagnose(of_verdicts(report.verdicts)).cause == kernel.rstrip("_")


@pytest.mark.parametrize("laws", sorted(set(KERNELS.values())))
def test_the_right_kernel_holds_on_the_same_laws(laws: str) -> None:
    report = checked("right", laws)
    assert report.exit_code == 0 and not failures(report)
    assert diagnose(of_verdicts(report.verdicts)) == UNKNOWN


def test_of_values_that_have_nothing_to_do_with_the_true_ones_nothing_is_said() -> None:
    report = checked("unclear")
    (failure,) = failures(report)
    assert failure.diagnosis == UNKNOWN and "  likely " not in render([report], "terminal")


def test_the_terminal_report_and_json_tell_it_once_a_fault() -> None:
    report = checked("sign")
    said = f"  likely   {CAUSES['sign']} ("
    assert render([report], "terminal").count(said) == len(failures(report)) == 1
    (fault,) = json.loads(render([report], "json"))["reports"][0]["faults"]
    assert fault["diagnosis"]["cause"] == "sign" and fault["verdicts"][0]["law"] == failures(report)[0].lead.law


def test_a_sum_taken_as_often_as_a_group_is_large_is_told_from_a_factor() -> None:
    assert diagnose(of_verdicts(checked("twice").verdicts)).cause in ("sum", "ratio")


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
    return Finding(tensor, Outcome.VIOLATED, "local", 9.0, **{"elements": 64, **fields})  # type: ignore[arg-type]


def broken(law: str, *findings: Finding, case: Case = CASE, **fields: object) -> Symptom:
    return Symptom(law, case.dtype, True, findings or (finding(),), case=case, **fields)  # type: ignore[arg-type]


def held(law: str, case: Case = CASE) -> Symptom:
    return Symptom(law, case.dtype, False, case=case)


def drawn(**draws: Draw) -> Case:
    return replace(CASE, draws=draws)


MALFORMED = finding("dq", malformed=True, message="dq is None: q takes part in the definition")
OTHERWISE = finding(malformed=True, message="o has dtype float64, wanted float32")
WIDE = ("wide", "outlier")
LOST = finding(lost=True, pattern="every element; NaN", place="every element")
TAIL = finding(lost=True, place="only T >= 8 (of 9)")
READS = "tiles.py:9: kernel, program (0, 0, 0), reads x[+6 elements from its first] of shape [2, 3], outside of it"
OUTSIDE, RACES = "every_access_stays_inside_its_tensor", "programs_of_a_launch_do_not_race"
UNWRITTEN, LAYOUTS = "no_memory_is_left_unwritten", "any_layout_of_inputs_is_right_or_refused"


@pytest.mark.parametrize(
    ("cause", "symptoms"),
    [
        ("access", [broken(RACES), broken(FORWARD, finding(cause="sign"))]),
        ("tail", [broken(RACES), broken("writes_stay_inside_their_tensors")]),
        ("access", [broken("inputs_and_cotangents_are_unmodified"), broken(FORWARD)]),
        ("tail", [broken(OUTSIDE, finding(message=READS)), held(FORWARD)]),
        ("shift", [broken(OUTSIDE, finding(message=READS)), broken(FORWARD)]),
        ("access", [broken(OUTSIDE, finding(message=READS + " (96 elements so)")), broken(FORWARD)]),
        ("stale", [broken(UNWRITTEN, LOST), broken(FORWARD, LOST)]),
        ("tail", [broken(UNWRITTEN, TAIL), broken(FORWARD, TAIL)]),
        ("shift", [broken(UNWRITTEN, finding(place="only T = 0")), broken(FORWARD)]),
        ("shift", [broken(UNWRITTEN, finding(place="only H = 0, only T = 0"))]),
        ("stale", [broken(UNWRITTEN, finding(place="only B = 1, only T >= 8 (of 9)"))]),
        ("stale", [broken(UNWRITTEN, finding(place="only B = 1, only T = 0"))]),
        ("stale", [broken("nothing_is_loaded_before_it_is_written"), broken(FORWARD, LOST)]),
        ("stale", [broken("runs_are_bit_identical")]),
        ("stale", [held(FORWARD), *(broken(law) for law in ("vjp_is_linear", "hvp_is_symmetric", "heads_permute"))]),
        ("term", [broken(VJP, MALFORMED)]),
        ("term", [*(broken(law, MALFORMED) for law in (VJP, RACES, "inputs_and_cotangents_are_unmodified"))]),
        ("dtype", [*(broken(law, OTHERWISE) for law in (FORWARD, "inputs_and_cotangents_are_unmodified"))]),
        ("layout", [broken(LAYOUTS), held(FORWARD)]),
        ("layout", [broken(FORWARD, case=drawn(q=Draw("normal", "transposed")), shrunk=True), broken(LAYOUTS)]),
        ("layout", [broken(FORWARD, case=drawn(q=Draw("normal", "transposed"))), held(FORWARD)]),
        ("", [broken(FORWARD, case=drawn(q=Draw("normal", "transposed"))), broken(FORWARD)]),
        ("range", [broken(FORWARD, LOST, case=drawn(q=Draw("normal:100"))), held(FORWARD)]),
        ("", [broken(FORWARD, LOST, case=drawn(q=Draw("normal:100"))), broken(FORWARD, LOST)]),
        ("range", [*(broken(FORWARD, LOST, case=drawn(q=Draw(r))) for r in WIDE), broken(FORWARD, LOST)]),
        ("dtype", [broken(FORWARD, note="holds under tf32")]),
        ("ratio", [broken(FORWARD, note="holds under tf32", formula=Likeness("with s times 1.01", "ratio", 1.01))]),
        (
            "ratio",
            [
                broken(FORWARD, note="holds under tf32", formula=Likeness("with s times 1.01", "ratio", 1.01)),
                *[
                    broken(FORWARD, note="holds under tf32", case=replace(CASE, dtype=d))
                    for d in ("float16", "bfloat16")
                ],
            ],
        ),
        (
            "ratio",
            [broken(FORWARD, *[finding(cause="ratio", ratio=r) for r in (1.01, 1.0101)], note="holds under tf32")],
        ),
        ("dtype", [broken(FORWARD, *[finding(cause="ratio", ratio=r) for r in (1.01, 0.99)], note="holds under tf32")]),
        ("tail", [broken(FORWARD, *[finding(place="only T >= 8 (of 9)")] * 2, note="holds under tf32")]),
        ("dtype", [broken(FORWARD, finding(place="only T >= 8 (of 9)"), note="holds under tf32")]),
        ("dtype", [broken(FORWARD, *[finding(place=f"only T = {n}") for n in (1, 2)], note="holds under tf32")]),
        ("dtype", [broken(FORWARD, finding(cause="dtype"))]),
        ("", [broken(FORWARD, finding(cause="dtype"), finding("l"))]),
        ("dtype", [broken(VJP, finding("dq", cause="dtype"), finding("dk", cause="dtype"), finding("dv"))]),
        ("", [broken(VJP, *[finding("dq", cause="dtype")] * 3, finding("dv", cause="sign"))]),
        ("dtype", [broken(FORWARD, case=replace(CASE, dtype="float16")), held(FORWARD)]),
        ("sign", [broken(FORWARD, formula=Likeness("with the sign of s changed", "sign"))]),
        ("ratio", [broken(VJP, finding("dk", cause="ratio", ratio=3.0))]),
        ("sum", [broken(VJP, finding("dk", cause="ratio", ratio=1 / 9))]),
        ("ratio", [broken(VJP, finding("dk", cause="ratio", ratio=2.0))]),
        ("sign", [broken(VJP, finding("dq"), finding("dk", cause="sign"), finding("dv", cause="sign"))]),
        ("", [broken(VJP, finding("dq"), finding("dk", cause="sign"), finding("dv"))]),
        ("sign", [broken(FORWARD, finding(cause="sign")), broken(VJP, finding("dq", cause="term"))]),
        ("tail", [broken(FORWARD, finding(place="only T >= 8 (of 9)"))]),
        ("slice", [broken(FORWARD, finding(place="only H = 1"), finding(place="only H = 1"), TAIL)]),
        ("layout", [broken(FORWARD, *[finding(place=f"only H >= 1 (of {n})") for n in (3, 4)]), broken(OUTSIDE)]),
        ("tail", [broken(FORWARD, *[finding(place=f"only T >= {n} (of 4)") for n in (1, 2)])]),
        ("tail", [broken("tail_and_padding_invariance"), held(FORWARD)]),
        ("offset", [broken("offsets_past_2_31_give_the_same", TAIL), held(FORWARD)]),
        ("access", [Symptom(FORWARD, "float32", True, note="RuntimeError: CUDA error: an illegal memory access")]),
        ("", [Symptom(RACES, "float32", True, note="forward raised KeyError: 'x'")]),
        ("", [held(FORWARD)]),
        ("", []),
    ],
)
def test_signs_point_at_a_cause_or_at_none(cause: str, symptoms: list[Symptom]) -> None:
    found = diagnose(symptoms)
    assert found.cause == cause and bool(found.evidence) == bool(cause), found


def test_the_results_of_one_case_are_symptoms_too() -> None:
    results = [
        LawResult(FORWARD, Status.HOLDS, (replace(finding(), outcome=Outcome.HOLDS),)),
        LawResult(VJP, Status.VIOLATED, (replace(finding("dv"), outcome=Outcome.HOLDS), finding("dk", cause="sign"))),
        LawResult(UNWRITTEN, Status.NOT_CHECKED, reason="needs a GPU"),
    ]
    symptoms = of_results(results, CASE)
    assert [(s.law, s.broken, len(s.findings)) for s in symptoms] == [(FORWARD, False, 0), (VJP, True, 1)]
    assert diagnose(symptoms).cause == "sign"


def test_laws_that_speak_for_themselves_exist() -> None:
    of_families = {law.name for target in shipped().values() for law in target.family.properties}
    assert set(OF_LAWS) <= {law.name for law in universal_laws()} | of_families
    assert set(OF_LAWS.values()) <= set(CAUSES)
