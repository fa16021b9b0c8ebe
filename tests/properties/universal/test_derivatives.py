"""Properties of derivatives, linearity and differences: where they are not checked, and what they allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.cases.sample import build
from gradoracle.check.widened import widened
from gradoracle.model.case import Case, Draw
from gradoracle.model.derivative import Derivative
from gradoracle.model.verdict import Status
from gradoracle.oracle.truth import Oracle
from tests.properties.judging import PROPERTIES, judge, judge_on
from tests.properties.judging import evidence as case_evidence
from tests.properties.toys import CASE, RIGHT, WEIGH, drawn, evidence, judged, kernel, right, weigh
from tests.properties.universal.wrong_derivatives import NeedsEveryCotangent, jvp_of, overflowing, stale_statistics

WEIGHED = Case("weigh", {"B": 3, "N": 7})


def test_the_outputs_of_an_explicit_jvp_are_judged_where_it_gives_any():
    prop = PROPERTIES["the_outputs_of_an_explicit_jvp_match_the_oracle"]
    assert "no explicit JVP" in prop.applies(CASE, RIGHT)
    silent = kernel(right, jvp=lambda *given: (None, jvp_of()(*given)[1]))
    assert judged(prop, silent).reason == "its JVP returns no outputs"


def test_infinite_outputs_are_named_where_the_truth_is_finite():
    prop, case = PROPERTIES["finite_where_the_truth_is_finite"], drawn(x="extreme:1000")
    assert judged(prop, RIGHT, case).status is Status.HOLDS
    found = judged(prop, kernel(overflowing), case)
    assert found.status is Status.VIOLATED
    assert all(finding.lost and "dim" not in finding.place for finding in found.findings if finding.pattern)
    assert judged(prop, kernel(overflowing)).status is Status.HOLDS  # at logits of ordinary size nothing overflows


@gradoracle.family(outputs=("o",))
def learned(r: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    return torch.sqrt(1 - torch.exp(-torch.sigmoid(r)))


def expm1_of(r: Tensor, factor: float = 1.0) -> Tensor:
    """The definition of ``learned`` with its gradient times ``factor``."""
    s = torch.sigmoid(r.float())
    o = torch.sqrt(-torch.expm1(-s)).to(r.dtype)
    return o * factor - o.detach() * (factor - 1)


def test_a_gradient_that_float64_makes_infinite_is_none_that_a_kernel_must_have():
    """At r = -40 float64 has 1 - exp(-4e-18) = 0, and an infinite gradient of its root."""
    case = Case("learned", {"N": 40}, "bfloat16", draws={"r": Draw("normal:20")})
    assert -80 < build(case, learned.signature).inputs["r"].min() < -37
    for factor, status in ((1.0, Status.HOLDS), (2.0, Status.VIOLATED)):
        times = gradoracle.kernel(learned, name="times")(lambda r, factor=factor: expm1_of(r, factor))
        assert judge("vjp_matches_the_oracle", case, times, Oracle(learned)).status is status


def test_a_backward_that_needs_every_cotangent_crashes_and_says_so():
    prop = PROPERTIES["vjp_of_a_cotangent_on_each_output_alone"]
    cases = [replace(CASE, seed=seed) for seed in (0, 1)]
    found = {judged(prop, kernel(NeedsEveryCotangent.apply), case).status for case in cases}
    assert found == {Status.HOLDS, Status.CRASHED}  # one of the outputs alone is enough, the other is not


class NeedsTheFirstTangent(torch.autograd.Function):
    """x y in forward mode, with a tangent only where x has one."""

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.save_for_forward(*inputs)
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    @staticmethod
    def jvp(ctx: Any, tx, ty):
        x, y = ctx.saved_tensors
        return torch.zeros_like(x) if tx is None else tx * y + (0 if ty is None else x * ty)


def test_a_tangent_that_needs_another_inputs_tangent_is_wrong():
    prop = PROPERTIES["jvp_of_a_tangent_on_each_input_alone"]

    def needing(x, y):
        p, s = right(x, y)
        return p / (x * y) * NeedsTheFirstTangent.apply(x, y), s

    def product(x, y):
        p, s = right(x, y)
        return p / (x * y) * (x * y), s

    cases = [replace(CASE, seed=seed) for seed in (0, 1)]
    assert {judged(prop, kernel(product), case).status for case in cases} == {Status.HOLDS}
    found = {judged(prop, kernel(needing), case).status for case in cases}
    assert found == {Status.HOLDS, Status.VIOLATED}  # along x it is right


def test_doubling_at_the_edge_of_underflow_is_no_violation():
    prop = PROPERTIES["vjp_is_linear_in_the_cotangent"]
    for dp in ("tiny:1e-37", "subnormal", "tiny"):
        assert judged(prop, RIGHT, drawn(dp=dp, ds=dp)).status is not Status.VIOLATED


class RoundsByAddress(torch.autograd.Function):
    """The identity, whose backward rounds in another way where its cotangent is not aligned to 16 bytes."""

    @staticmethod
    def forward(ctx: Any, x):
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g):
        return g * 1.0 if g.data_ptr() % 16 == 0 else g * 3.0 / 3.0


def test_a_doubled_cotangent_lies_in_memory_as_the_cotangent_does():
    prop = PROPERTIES["vjp_is_linear_in_the_cotangent"]
    rounding = kernel(lambda x, y: tuple(RoundsByAddress.apply(t) for t in right(x, y)))
    case = CASE.with_draws(dp=Draw("normal", "offset"), ds=Draw("normal", "offset"))
    subject = evidence(rounding, case)
    laid = subject.tensors(Derivative.VJP)
    subject = evidence(rounding, case.with_draws(dp=Draw("normal"), ds=Draw("normal")))
    assert any((laid[name] != tensor).any() for name, tensor in subject.tensors(Derivative.VJP).items())
    assert judged(prop, rounding, case).status is Status.HOLDS


STEP = PROPERTIES["hvp_finite_difference_convergence"]
ORDER = PROPERTIES["hvp_finite_difference_convergence_is_of_second_order"]


def test_statistics_of_an_earlier_point_are_correct_at_the_first_one():
    assert judged(PROPERTIES["vjp_matches_the_oracle"], kernel(stale_statistics())).status is Status.HOLDS


def test_differences_hold_in_narrow_formats_and_at_odd_inputs():
    for dtype in ("bfloat16", "float16"):
        for seed in range(4):
            case = replace(CASE, dtype=dtype, seed=seed)
            narrow = kernel(lambda x, y: tuple(t.to(x.dtype) for t in right(x.float(), y.float())), dtypes=None)
            assert judged(STEP, narrow, case).status in (Status.HOLDS, Status.NOT_CHECKED)
    for recipe in ("largemean", "ties", "zeros", "tiny", "extreme:100", "onehot", "constant"):
        for draws in ({"x": recipe}, {"x": recipe, "tx": recipe, "ty": recipe}):
            assert judged(STEP, RIGHT, drawn(**draws)).status in (Status.HOLDS, Status.NOT_CHECKED), draws


def test_a_gradient_that_is_0_at_both_ends_and_tiny_between_them_is_no_violation():
    """e^-160 at the middle of the step, and exactly 0 in float64 at its ends."""

    @gradoracle.family(outputs=("p",))
    def weighed(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
        return torch.softmax(x * w, -1)

    line = "case:1 weighed cpu bfloat16 family=weighed B=3 N=4 x~extreme w~ramp dp~largemean:1000 seed=0"
    eager = gradoracle.kernel(weighed)(lambda x, w: torch.softmax(x * w, -1))
    assert judge(STEP.name, line, eager, Oracle(weighed)).status is Status.HOLDS
    large = gradoracle.kernel(weighed)(lambda x, w: 3 * torch.softmax(x * w, -1))
    assert judge(STEP.name, line.replace("extreme", "normal"), large, Oracle(weighed)).status is Status.VIOLATED


class Turning(torch.autograd.Function):
    """sin(x) w whose gradients are off by a factor, in the other direction at each call."""

    off, calls = 0.0, 0

    @staticmethod
    def forward(ctx: Any, x, w):
        ctx.save_for_backward(x, w)
        return torch.sin(x) * w

    @staticmethod
    def backward(ctx: Any, g):
        x, w = (saved.double() for saved in ctx.saved_tensors)
        Turning.calls += 1
        factor = 1 + Turning.off * (-1) ** Turning.calls
        return (g * x.cos() * w * factor).float(), (g * x.sin() * factor).sum(0).float()


def test_errors_within_their_budgets_at_both_ends_may_add_up(monkeypatch):
    """A correct kernel's stood at 4.4 and -7.8 sigma, which is 8.5 sigma of two that are independent."""
    case, turning = replace(WEIGHED, seed=3), replace(WEIGH, call=Turning.apply)

    def found(prop, off):
        monkeypatch.setattr(Turning, "off", off)
        return judged(prop, turning, case, family=weigh)

    def sigmas(off):
        return max(each.error_in_sigma for each in found(PROPERTIES["vjp_matches_the_oracle"], off).findings)

    most = 7.5e-6 / (sigmas(1e-6) - sigmas(0.0))
    assert 6 < sigmas(most) < 8
    assert found(STEP, most).status is Status.HOLDS
    assert found(STEP, 3 * most).status is Status.VIOLATED


def test_a_peak_of_the_third_derivative_between_the_ends_decides_nothing():
    """C at x is tiny and the step large: both differences, the definition's and the kernel's, have that truncation."""

    @gradoracle.family(outputs=("o",))
    def steep(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        return torch.tanh(64 * x)

    line = "case:1 steep cpu float32 family=steep B=3 N=16 seed=0"
    for factor, status in ((64.0, Status.HOLDS), (63.0, Status.VIOLATED)):
        own = gradoracle.kernel(steep)(lambda x, factor=factor: torch.tanh(factor * x))
        assert judge(STEP.name, line, own, Oracle(steep)).status is status
        own = widened(case_evidence(line, own, Oracle(steep)))
        assert judge_on(STEP.name, own).status is status


def test_a_third_derivative_of_zero_is_not_checked():
    found = judged(ORDER, RIGHT, drawn(x="zeros", y="zeros", tx="zeros", ty="zeros"))
    assert found.status is Status.NOT_CHECKED
    assert "ten times rounding" in found.reason
