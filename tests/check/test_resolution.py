"""What float64 does not resolve in a kernel's own formulas is lost precision; what float32 cannot show is a note."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gradoracle.properties import universal
from places import loaded
from torch import Tensor

from gradoracle.cases.sample import build
from gradoracle.check.evidence import Evidence
from gradoracle.check.judge_property import judge_property
from gradoracle.check.severity import with_severity
from gradoracle.check.tally import verdicts_of
from gradoracle.check.widened import Measured, judged_widened, measured, widened
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.job import CaseResult, PropertyResult
from gradoracle.model.property import Property
from gradoracle.model.reason import Reason
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Counterexample, Status, Verdict
from gradoracle.oracle.truth import Oracle
from gradoracle.report.shown_fault import ShownFault, tell_all

kernels = loaded("check.resolution")
PROPERTIES: dict[str, Property] = {prop.name: prop for prop in universal.UNIVERSAL}
FORWARD, VJP = PROPERTIES["forward_matches_the_oracle"], PROPERTIES["vjp_matches_the_oracle"]
DEFINITION = PROPERTIES["definition_is_exact_when_widened"]


def evidence(name: str, reading: str = "auto", **inputs: Tensor) -> Evidence:
    """A kernel on given inputs, in a case of their sizes."""
    kernel: Any = getattr(kernels, name)
    family = getattr(kernels, kernel.family)
    sizes: dict[str, int] = {}
    for spec in family.signature.inputs:
        sizes |= dict(zip(spec.dims, inputs[spec.name].shape, strict=True))
    case = Case(family.name, sizes, dtype="float32", seed=3)
    sample = build(case, family.signature).with_inputs(**inputs)
    return Evidence(case, sample, KernelRunner(family, kernel), Oracle(family, reading))


def severity(prop: Property, found: Evidence) -> PropertyResult:
    result = judge_property(prop, found)
    assert result.status is Status.VIOLATED
    return with_severity(prop, found, result)


# ---- the kernel's own rounding ----


def test_cancellation_that_float64_resolves_is_wrong_where_nothing_is_left_in_float32() -> None:
    """It is 0 where the truth is 2e-9: no preset explains that; what is left in float64 the budget there explains."""
    result = severity(FORWARD, evidence("cancels", x=torch.tensor([[-20.0]])))
    assert result.severity is Severity.WRONG and "is off by 100 % of the truth" in result.undecided


@pytest.mark.parametrize(
    ("kernel", "expected", "preset", "number"),
    [
        ("rounds_to_bfloat16", Severity.PRECISION, "eager-bf16", ""),
        ("rounds_to_less_than_bfloat16", Severity.WRONG, "", "14.9 % of the truth, 2.51 times what eager-bf16"),
    ],
)
def test_what_no_preset_explains_is_wrong_with_the_share_and_the_factor(
    kernel: str, expected: Severity, preset: str, number: str
) -> None:
    x = math.log(math.expm1(1 + 0.96 * 2.0**-8))  # the definition is nearly between two numbers of bfloat16
    result = severity(FORWARD, evidence(kernel, x=torch.tensor([[x]])))
    assert (result.severity, result.preset) == (expected, preset) and number in result.undecided


@pytest.mark.parametrize("x", [-28.58, -34.0, -40.0, -60.0])
def test_cancellation_that_float64_does_not_resolve_either_is_lost_precision(x: float) -> None:
    """1 + exp(x) loses exp(x), all of it in float32, and from -37 on in float64 as well."""
    found = evidence("cancels", x=torch.tensor([[x]]))
    result = severity(FORWARD, found)
    assert result.severity is Severity.PRECISION
    assert judge_property(DEFINITION, found).status in (Status.HOLDS, Status.NOT_CHECKED)


def test_what_is_left_of_such_an_error_is_said() -> None:
    result = severity(FORWARD, evidence("cancels", x=torch.tensor([[-28.58]])))
    (finding,) = result.findings
    assert 1e-6 < finding.left < 1e-3
    shown = Counterexample("case", result.findings, severity=result.severity)
    verdict = Verdict(
        FORWARD.name, "k", "float32", Status.VIOLATED, severity=result.severity, counterexample=shown, cases_violated=1
    )
    said = next(text for label, text in tell_all(ShownFault(verdict, ())) if label == "severity")
    assert said.startswith("precision: ") and f" from 1 to {finding.left:.2g} of {finding.tensor} " in said


def test_a_wrong_formula_where_precision_is_lost_too_stays_wrong() -> None:
    found = evidence("cancels_and_is_wrong_far_below", x=torch.tensor([[-28.58, -0.5]]))
    assert severity(FORWARD, found).severity is Severity.WRONG
    assert judge_property(DEFINITION, found).status is Status.VIOLATED


def test_a_log_sum_exp_may_be_saved() -> None:
    """A P of 1 has no error in the definition, and exp(S - L) is off by u |L| where S is computed again."""
    q, k = torch.linspace(39, 41, 8)[:, None], torch.tensor([[45.3], [30.1], [1.0]])
    v = torch.tensor([[1.0], [-2.0], [0.5]])
    found = evidence("saves_log_sum_exp", q=q, k=k, v=v)
    wide = widened(found)
    assert any(each.outcome is Outcome.VIOLATED for each in wide.compare(Derivative.VJP)), "the kernel's own is needed"
    again = {each.tensor: each for each in measured(wide).compare(Derivative.VJP)}
    assert all(each.outcome is not Outcome.VIOLATED and not each.off for each in again.values())
    assert again["dv"].outcome is Outcome.HOLDS  # the truth of the others is 0
    assert judge_property(DEFINITION, found).status is Status.HOLDS
    slips = evidence("saves_log_sum_exp_and_slips", q=q, k=k, v=v)
    assert judge_property(DEFINITION, slips).status is Status.VIOLATED
    assert judged_widened(VJP, widened(slips)).status is Status.VIOLATED


def test_the_kernels_own_rounding_is_as_large_as_its_errors() -> None:
    """log(1 + exp(x)) at -20 to -30: errors of 2^-53, against truths of 1e-9 to 1e-13."""
    x = torch.linspace(-30, -20, 40).reshape(5, 8)
    wide = widened(evidence("cancels", x=x))
    truth, got = wide.truths(Derivative.FORWARD)["out"], wide.forward()["out"]
    sigma = measured(wide).allowance(Derivative.FORWARD, "out").sigma
    errors = (got - truth.value) / sigma
    assert 0.2 < float(errors.square().mean().sqrt()) < 2 and float(errors.abs().max()) < 6


def test_two_runs_settle_that_an_error_is_none_of_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    run = Measured._run
    monkeypatch.setattr(Measured, "_run", lambda *given: made.append(given) or run(*given))
    for found, outcome, runs in (
        (evidence("cancels", x=torch.linspace(-30, -20, 8)[None]), Outcome.HOLDS, 8),
        (evidence("clamps_too_early", x=X[:1], log_step=STEPS[:1]), Outcome.VIOLATED, 2),
    ):
        made.clear()
        (out,) = measured(widened(found)).compare(Derivative.FORWARD)
        assert (out.outcome, len(made)) == (outcome, 1 + runs)


# ---- what float32 does not show ----


ABOVE = torch.tensor([[21.5, 22.0, -1.0, 3.0]])


def test_a_formula_that_is_off_by_less_than_float32_shows_holds_with_a_note() -> None:
    found = evidence("smooth_above_the_threshold", x=ABOVE)
    result = judge_property(DEFINITION, found)
    assert result.status is Status.HOLDS
    (dx,) = [each for each in result.findings if each.tensor == "dx"]
    assert 1e-10 < dx.off < 1e-9 and dx.message.endswith("less than float32 shows")
    (verdict,) = verdicts_of([CaseResult("k", found.case, (result,))])
    (note,) = verdict.notes
    assert "less than float32 shows" in note and note.endswith(f": dx by {dx.off:.2g}")


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [("off_by_a_part_in_a_million", "float32"), ("smooth_above_the_threshold_in_float64", "float32")],
)
def test_what_float32_shows_is_wrong_and_so_is_anything_where_float64_is_claimed(kernel: str, dtype: str) -> None:
    assert judge_property(DEFINITION, evidence(kernel, dtype, x=ABOVE)).status is Status.VIOLATED


# ---- definitions that leave float64 ----


X, STEPS = torch.tensor([[0.5, -20.0, 30.0], [0.5, -2.0, 3.0]]), torch.tensor([0.25, -9756.0])


def findings(name: str, prop: Property = FORWARD, **given: Any) -> list[Finding]:
    return list(judge_property(prop, evidence(name, **given)).findings)


def test_elements_whose_definition_leaves_float64_are_left_out_and_the_others_judged() -> None:
    for prop in (FORWARD, VJP, DEFINITION):
        result = judge_property(prop, evidence("clamps", x=X, log_step=STEPS))
        assert result.status is Status.HOLDS, (prop.name, result.findings)
    (out,) = findings("clamps", x=X, log_step=STEPS)
    assert (out.elements, out.undecided) == (3, 3)
    (wrong,) = findings("clamps_too_early", x=X, log_step=STEPS)
    assert wrong.outcome is Outcome.VIOLATED and wrong.worst is not None and wrong.worst.index == (0, 1)
    assert judge_property(DEFINITION, evidence("clamps_too_early", x=X, log_step=STEPS)).status is Status.VIOLATED


def test_a_case_that_leaves_float64_throughout_is_not_checked_and_says_why() -> None:
    for prop in (FORWARD, DEFINITION):
        result = judge_property(prop, evidence("clamps", x=X[1:], log_step=STEPS[1:]))
        assert (result.status, result.why) == (Status.NOT_CHECKED, Reason.UNREAD)
        assert "the range of float64 (" in result.reason
    result = judge_property(FORWARD, evidence("clamps", reading="float64", x=X, log_step=STEPS))
    assert result.status is Status.NOT_CHECKED and "--oracle auto reads it" in result.reason
