"""Severity: what stays when widened is wrong, what goes away is precision, and whatever else is undecided."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from places import ROOT, TESTS, loaded
from sweeps import slow

from gradoracle.cases.sample import build
from gradoracle.cases.saved_tensors import Given
from gradoracle.check import run as running
from gradoracle.check import severity as judging
from gradoracle.check.evidence import Evidence
from gradoracle.check.faults import diagnosed, grouped
from gradoracle.check.fold import report_of
from gradoracle.check.plan import Subjects
from gradoracle.check.run import check
from gradoracle.check.severity import of_widened, settle_pooled
from gradoracle.check.triage import THIS_PROCESS, triaged
from gradoracle.check.widened import widened
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding, Outcome, Worst
from gradoracle.model.job import PropertyResult
from gradoracle.model.ledger import Ledger
from gradoracle.model.property import PropertyKind
from gradoracle.model.reason import Reason
from gradoracle.model.severity import Severity, gravest
from gradoracle.model.verdict import Counterexample, Report, Status, Verdict
from gradoracle.oracle.truth import Oracle
from gradoracle.project.request import Request
from gradoracle.report.summary import kept
from gradoracle.report.terminal import render

norms = loaded("check.norms")
NORMS = norms.__file__
FAR = f"{TESTS / 'check' / 'test_claims.py'}:far"
FORWARD, VJP = "forward_matches_the_oracle", "vjp_matches_the_oracle"
DEFINITION, LAYOUTS = "definition_is_exact_when_widened", "any_layout_of_inputs_is_right_or_refused"


@functools.cache
def checked(kernel: str, property_name: str = "[fv]*_matches_the_oracle", **fields: Any) -> Report:
    plain = {"device": "cpu", "dtypes": ("bfloat16",), "examples": 24, "workers": 0, "property": property_name}
    return check(Request(f"{NORMS}:{kernel}", **{**plain, **fields}))


def severities(report: Report) -> dict[str, Severity | None]:
    return {v.property_name: v.severity for v in report.verdicts if v.status in (Status.VIOLATED, Status.CRASHED)}


def test_an_error_that_goes_away_is_precision_and_its_contract_is_inferred() -> None:
    report = checked("loses_precision")
    assert severities(report) == {FORWARD: Severity.PRECISION, VJP: Severity.PRECISION} and report.exit_code == 0
    assert [(each.dtype, each.preset) for each in kept(report)] == [("bfloat16", "eager-bf16")]
    text = " ".join(render([report]).split())
    assert "inferred bfloat16: " in text and "keeps eager-bf16; " in text
    assert "bits of dx" in text and "below bf16" in text
    assert "· PRECISION" in text and "precision is lost in bfloat16" in text


@pytest.mark.parametrize(
    ("fail_on", "code"), [(Severity.WRONG, 0), (Severity.PRECISION, 1), slow(Severity.ROBUSTNESS, 1), slow(None, 0)]
)
def test_fail_on_sets_what_counts(fail_on: Severity | None, code: int) -> None:
    assert checked("loses_precision", fail_on=fail_on).exit_code == code


def test_precision_counts_against_a_declared_contract() -> None:
    report = checked("declares_more_than_it_keeps")
    assert set(severities(report).values()) == {Severity.PRECISION} and report.exit_code == 1 and not kept(report)
    assert "✗ PRECISION  " in render([report])
    assert checked("declares_what_it_keeps").exit_code == 0
    assert asked("bf16").exit_code == 1 and asked("eager-bf16").exit_code == 0


def asked(preset: str) -> Report:
    request = Request(
        f"{NORMS}:loses_precision",
        device="cpu",
        dtypes=("bfloat16",),
        examples=24,
        workers=0,
        property="[fv]*_matches_the_oracle",
        contracts={"bfloat16": preset},
    )
    return check(request)


def test_one_wrong_case_among_many_that_lose_precision_is_wrong_and_is_shown() -> None:
    report = checked("loses_precision_and_some_tails")
    assert set(severities(report).values()) == {Severity.WRONG} and report.exit_code == 1
    for verdict in report.verdicts:
        shown = verdict.counterexample
        assert shown is not None and shown.severity is Severity.WRONG and " N=5" in shown.case, shown
    assert "wrong: the error stays " in render([report])


def line_of(text: str) -> int:
    """The first line of the kernels' file that holds a text."""
    return next(n for n, line in enumerate(Path(NORMS).read_text().splitlines(), 1) if text in line)


def test_the_statement_at_which_precision_is_lost_is_named() -> None:
    report = checked("loses_precision", FORWARD)
    shown = report.verdicts[0].counterexample
    assert shown is not None and shown.loss is not None and shown.constant is None
    assert shown.loss.statement.line == line_of("return (wide * torch.rsqrt") and not shown.loss.others
    text = " ".join(render([report]).split())
    place = f"norms.py:{shown.loss.statement.line}"
    assert text.count(place) == 2 and "return (wide * torch.rsqrt" in text


def test_the_constant_that_is_wrong_is_named_where_a_case_has_several_elements() -> None:
    report = checked("has_a_wrong_constant", "definition_is_exact_when_widened")
    shown = report.verdicts[0].counterexample
    assert shown is not None and shown.constant is not None and shown.loss is None
    constant = shown.constant
    assert (constant.value, constant.fitted, constant.line) == (1.0005, 1.0, line_of("return (1.0005 *"))
    assert f"norms.py:{constant.line} 1.0005 should be 1" in " ".join(render([report]).split())


def of_severity(property_name: str, severity: Severity, tensor: str = "dx") -> Verdict:
    wrong = Finding(tensor, Outcome.VIOLATED, "local", 2.0, derivative=Derivative.VJP)
    return Verdict(
        property_name, "k", "bfloat16", Status.VIOLATED, severity=severity, counterexample=Counterexample("c", (wrong,))
    )


@pytest.mark.parametrize(
    ("one", "other", "tensor", "faults"),
    [
        (Severity.WRONG, Severity.WRONG, "dx", 1),
        (Severity.PRECISION, Severity.PRECISION, "dx", 1),
        (Severity.PRECISION, Severity.WRONG, "dx", 1),
        (Severity.PRECISION, Severity.WRONG, "dw", 2),
        (Severity.WRONG, Severity.UNDECIDED, "dx", 1),
    ],
)
def test_lost_precision_of_a_tensor_that_is_not_wrong_is_a_fault_apart_and_the_gravest_comes_first(
    one: Severity, other: Severity, tensor: str, faults: int
) -> None:
    verdicts = [of_severity("first", one), of_severity("second", other, tensor)]
    found = diagnosed(grouped(verdicts), verdicts)
    assert len(found) == faults and found[0].severity is gravest([one, other])


def test_results_and_new_tensors_that_a_variant_is_made_of_are_widened_and_name_their_dtype() -> None:
    case = Case("normalised", {"B": 3, "N": 8}, dtype="bfloat16", seed=4)
    sample, oracle = build(case, norms.normalised.signature), Oracle(norms.normalised, "float64")
    wide = widened(Evidence(case, sample, KernelRunner(norms.normalised, norms.loses_precision), oracle))
    fed = wide.variant(
        "fed", lambda own: own.with_inputs(x=wide.forward()["out"], w=torch.ones(8, dtype=torch.bfloat16))
    )
    assert all(each.dtype is torch.float64 for each in fed.sample.inputs.values())
    assert {each.outcome for each in fed.compare(Derivative.FORWARD)} == {Outcome.HOLDS}
    assert fed.forward()["out"].dtype is torch.float64
    far = torch.empty(1, dtype=torch.bfloat16).as_strided((1,), (1,)).expand(8)
    far.untyped_storage().resize_((1 << 30) + 2)
    assert wide.variant("far", lambda own: own.with_inputs(w=far)).sample.inputs["w"] is far


def test_lost_values_are_wrong_without_being_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "widened", None)
    report = checked("returns_nan", FORWARD)
    assert severities(report)[FORWARD] is Severity.WRONG


def test_what_overflows_on_the_way_to_a_finite_result_is_wrong_and_a_fault_of_its_own() -> None:
    given = {"dtypes": ("float16",), "examples": 80}
    report = checked("squares_in_the_dtype", FORWARD, **given)
    assert severities(report) == {FORWARD: Severity.WRONG} and report.exit_code == 1
    assert len(report.faults) == 1
    (found,) = [v.counterexample for v in report.verdicts if v.status is Status.VIOLATED]
    assert found is not None and found.loss is not None and "squares_in_the_dtype" in found.loss.statement.function
    (wrong,) = [finding for finding in found.findings if finding.outcome is Outcome.VIOLATED]
    assert wrong.lost and wrong.overflow and "too large for its dtype" in wrong.message
    assert wrong.worst is not None and wrong.worst.got == 0
    other = checked("squares_apart_in_the_dtype", FORWARD, **given)
    assert severities(other) in ({}, {FORWARD: Severity.PRECISION}) and other.exit_code == 0


def test_what_a_kernel_declares_to_support_and_refuses_is_wrong() -> None:
    report = checked("refuses_what_it_supports", "declared_support_is_accepted")
    assert severities(report) == {"declared_support_is_accepted": Severity.WRONG} and report.exit_code == 1


def test_robustness_does_not_count_without_a_declaration() -> None:
    property_name = "bad_arguments_raise_value_error"
    report = checked("fails_on_integers", property_name)
    assert severities(report) == {property_name: Severity.ROBUSTNESS} and report.exit_code == 0
    text = " ".join(render([report]).split())
    assert "· ROBUSTNESS" in text and "1 property of robustness" in text
    assert checked("fails_on_integers", property_name, fail_on=Severity.ROBUSTNESS).exit_code == 1
    assert checked("fails_on_integers", property_name, fail_on=Severity.PRECISION).exit_code == 0


GONE = Finding("o", Outcome.HOLDS, "local")
STAYS = Finding("o", Outcome.VIOLATED, "local")
WIDE_BUDGET = Finding("o", Outcome.NOT_CHECKED, "local", message="budget too wide", why=Reason.BUDGET)
UNKNOWN = Finding("o", Outcome.NOT_CHECKED, "local", message="no reading")
OTHER = Finding("dq", Outcome.NOT_CHECKED, "local", message="no reading")


@pytest.mark.parametrize(
    ("status", "findings", "reason", "expected"),
    [
        (Status.HOLDS, (GONE,), None, Severity.PRECISION),
        (Status.HOLDS, (GONE, OTHER), None, Severity.PRECISION),
        (Status.VIOLATED, (STAYS,), None, Severity.WRONG),
        (Status.NOT_CHECKED, (WIDE_BUDGET,), Reason.BUDGET, Severity.PRECISION),
        (Status.HOLDS, (UNKNOWN, replace(GONE, tensor="dq")), None, Severity.UNDECIDED),
        (Status.NOT_CHECKED, (), Reason.NOT_WIDENED, Severity.UNDECIDED),
        (Status.NOT_CHECKED, (GONE,), Reason.NOT_WIDENED, Severity.UNDECIDED),
        (Status.REFUSED, (), Reason.REFUSED, Severity.UNDECIDED),
        (Status.ERROR, (), Reason.ERROR, Severity.UNDECIDED),
    ],
)
def test_only_an_error_that_is_seen_to_go_away_is_precision(
    status: Status, findings: tuple[Finding, ...], reason: Reason | None, expected: Severity
) -> None:
    severity, why = of_widened(
        PropertyResult("property", status, findings, reason="why", why=reason), [STAYS], "float32"
    )
    assert severity is expected and bool(why) == (expected is Severity.UNDECIDED)


def error(tensor: str, size: float, true: float = 0.0, **fields: Any) -> Finding:
    worst = Worst((0,), true + size, true, math.inf)
    return Finding(tensor, Outcome.VIOLATED, "exact", math.inf, worst=worst, **fields)


@pytest.mark.parametrize(
    ("as_written", "wide", "expected"),
    [
        (error("o", 1e-3), error("o", 4e-15), Severity.PRECISION),
        (error("o", 1e-3), error("o", 9e-4), Severity.WRONG),
        (error("o", 1e-3), error("o", 1e-7), Severity.WRONG),
        (error("o", 1e-3), error("dq", 4e-15), Severity.WRONG),
        (error("o", 1.0, 1e3), error("o", 1e-9, 1e3), Severity.PRECISION),
        (error("o", 1.0, 1e3), error("o", 1e-9, 1e-6), Severity.WRONG),  # of another element, as large relative to it
        (error("o", 1e-3), error("o", 4e-15, lost=True), Severity.WRONG),
        (error("o", 1e-3, lost=True), error("o", 4e-15), Severity.WRONG),
    ],
)
def test_an_error_as_many_times_smaller_as_the_roundoff_is_precision(
    as_written: Finding, wide: Finding, expected: Severity
) -> None:
    again = PropertyResult("property", Status.VIOLATED, (wide,))
    assert of_widened(again, [as_written], "float32") == (expected, "")
    assert of_widened(again, [as_written], "float64") == (Severity.WRONG, "")


def test_a_layout_that_changes_only_roundings_is_precision() -> None:
    """A changed sample holds the float64 values of the widened one, in the layout that is asked for."""
    property_name, fields = "any_layout_of_inputs*,definition*", {"examples": 60}
    assert severities(checked("loses_precision_in_other_layouts", property_name, **fields)) == {
        LAYOUTS: Severity.PRECISION
    }
    assert severities(checked("is_wrong_in_other_layouts", property_name, **fields))[LAYOUTS] is Severity.WRONG


def test_rounding_where_the_definition_rounds_nothing_is_precision() -> None:
    found, wrong = (
        severities(checked(kernel, "[dfv]*", dtypes=("float32",)))
        for kernel in ("rounds_where_nothing_rounds", "keeps_a_part_of_its_mean")
    )
    assert found.pop(VJP) is Severity.PRECISION and Severity.WRONG not in found.values()
    assert wrong[FORWARD] is wrong[DEFINITION] is Severity.WRONG


def test_results_of_a_widened_kernel_may_name_the_dtype_that_pytorch_predicts() -> None:
    """It predicts float32 statistics of a layer norm in bfloat16, whose CPU kernel keeps them in bfloat16."""
    target = f"{ROOT}/examples/packages/torch_norms.py:layer_norm"
    request = Request(target, device="cpu", dtypes=("bfloat16",), examples=24, workers=0, property="[dfj]*")
    found = severities(check(request))
    assert found["jvp_matches_the_oracle"] is Severity.PRECISION and DEFINITION not in found


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (Status.HOLDS, Severity.PRECISION),
        (Status.VIOLATED, Severity.WRONG),
        (Status.NOT_CHECKED, Severity.UNDECIDED),
    ],
)
def test_what_only_all_cases_show_has_the_severity_of_the_formula(status: Status, expected: Severity) -> None:
    pooled = Verdict("vjp", "k", "bfloat16", Status.VIOLATED, counterexample=Counterexample("case", (), pooled=True))
    by_definition = Verdict("formula", "k", "bfloat16", status, kind=PropertyKind.DEFINITION)
    elsewhere = Verdict("formula", "k", "float16", Status.VIOLATED, kind=PropertyKind.DEFINITION)
    settle_pooled([pooled, by_definition, elsewhere])
    assert pooled.severity is expected


def test_the_gravest_of_several() -> None:
    assert gravest([None, Severity.ROBUSTNESS, Severity.PRECISION]) is Severity.PRECISION
    assert gravest([Severity.UNDECIDED, Severity.WRONG]) is Severity.WRONG
    assert gravest([None]) is None


def as_on_a_gpu(kernel: str, monkeypatch: pytest.MonkeyPatch) -> Request:
    """A check of one property in a process that cannot widen kernels, as one whose kernels run on a GPU."""
    monkeypatch.setattr(KernelRunner, "interprets", False)
    return Request(f"{NORMS}:{kernel}", device="cpu", dtypes=("bfloat16",), examples=24, workers=0, property=FORWARD)


def judged(request: Request, **fields: Any) -> tuple[Subjects, Ledger]:
    """What a check judged, before anything is shrunk; ``fields``: of its subjects afterwards."""
    with running.running(request) as run:
        run.over(running.plan(run.subjects, with_severity=True))
        return replace(run.subjects, **fields), run.ledger


def settled(subjects: Subjects, ledger: Ledger) -> Verdict:
    """The one verdict, with what triage finds."""
    for record in triaged(subjects, ledger, None):
        ledger.add(record)
    (verdict,) = report_of(ledger, compared=True).verdicts
    return verdict


def test_what_no_preset_explains_is_wrong_on_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is a tenth off as it is written, and exact when widened, was *precision* on a GPU alone."""
    request = replace(as_on_a_gpu("loses_precision", monkeypatch), target=FAR, dtypes=("float32",))
    found = settled(*judged(request))
    assert found.severity is Severity.WRONG and "no preset of float32" in found.severity_note


of_each_severity = pytest.mark.parametrize(
    ("kernel", "expected"),
    [("loses_precision", Severity.PRECISION), ("loses_precision_and_some_tails", Severity.WRONG)],
)


@of_each_severity
def test_what_a_gpu_could_not_decide_is_judged_widened_afterwards(
    kernel: str, expected: Severity, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects, ledger = judged(as_on_a_gpu(kernel, monkeypatch))
    (before,) = report_of(ledger, compared=True).verdicts
    assert before.severity is Severity.UNDECIDED
    after = settled(subjects, ledger)
    assert after.severity is expected and not after.severity_note
    assert after.counterexample is not None and after.counterexample.severity is expected


@of_each_severity
def test_so_is_the_counterexample_where_no_other_case_was_asked(
    kernel: str, expected: Severity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate asks for no severity while it judges cases; the report on a GPU said "undecided" and gave no reason."""
    with running.running(as_on_a_gpu(kernel, monkeypatch)) as run:
        run.over(running.plan(run.subjects))
        (as_on_cpu,) = run.report().verdicts
    with running.running(as_on_a_gpu(kernel, monkeypatch)) as run:
        run.over(running.plan(run.subjects))
        run.subjects = replace(run.subjects, device="cuda")
        (as_on_gpu,) = run.report().verdicts
    assert (as_on_cpu.severity, as_on_cpu.severity_note) == (Severity.UNDECIDED, judging.NEEDS_INTERPRETER)
    assert (as_on_gpu.severity, as_on_gpu.severity_note) == (expected, "")
    shown = as_on_gpu.counterexample
    assert shown is not None and shown.severity is expected
    explains = "eager-bf16" if expected is Severity.PRECISION else ""  # nothing explains what is wrong
    assert as_on_gpu.keeps == shown.preset == explains
    assert shown.message == (f"holds under {explains}" if explains else "")


def test_a_kernel_of_this_process_alone_is_not_judged_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    request = as_on_a_gpu("loses_precision", monkeypatch)
    subjects, ledger = judged(request)
    subjects = replace(subjects, request=replace(request, inputs=Given("this call", {})))
    found = settled(subjects, ledger)
    assert (found.severity, found.severity_note) == (Severity.UNDECIDED, THIS_PROCESS)
