"""Claims: what a report says of each derivative, and which errors count."""

from __future__ import annotations

import functools
import re
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.check.run import check
from gradoracle.model.claims import CLAIMED, OFFERED, Mark, Standing, line, standings
from gradoracle.model.derivative import Derivative
from gradoracle.model.errors import UsageError
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.kernel import claims_of
from gradoracle.model.property import PropertyKind
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Counterexample, Report, Status, Verdict
from gradoracle.project.request import Request
from gradoracle.report import github, html, json, junit, markdown, terminal

SIZES = {"B": gradoracle.sizes(1, 4), "N": gradoracle.sizes(1, 9)}
FIRST_ORDER = ("forward", "vjp")
SECOND_ORDER = (Derivative.VJP, Derivative.HVP)
HOLDS, OPEN = Standing(Mark.HOLDS), Standing(Mark.OPEN, "undecided")
ABSENT, WRONG = Standing(Mark.ABSENT, "not claimed"), Standing(Mark.FAILS, "wrong")


@gradoracle.family(dims=SIZES)
def scaled(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    return x * torch.sin(w)


class Detached(torch.autograd.Function):
    """Its gradients are constants to autograd, as those that a Triton program writes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * torch.sin(w)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        x, w, g = (tensor.detach() for tensor in (*ctx.saved_tensors, *given))
        return g * torch.sin(w), (g * x * torch.cos(w)).sum(0)


class Scaled(Detached):
    """Its gradient is 1 % off."""

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        dx, dw = Detached.backward(ctx, *given)
        return dx * 1.01, dw


class WrongTangent(Detached):
    """Its forward mode leaves out the tangent of w."""

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, tw: Tensor) -> Tensor:
        return tx * torch.sin(ctx.w)

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.w = w
        return Detached.forward(ctx, x, w)


class HalfDetached(Detached):
    """Its second gradient is a constant to autograd, the first is not."""

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        (_, w), (g,) = ctx.saved_tensors, given
        return g * torch.sin(w), Detached.backward(ctx, *given)[1]


@gradoracle.kernel(scaled)
def right(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.sin(w)


@gradoracle.kernel(scaled)
def silent(x: Tensor, w: Tensor) -> Tensor:
    return Detached.apply(x, w)


@gradoracle.kernel(scaled)
def wrong_tangent(x: Tensor, w: Tensor) -> Tensor:
    return WrongTangent.apply(x, w)


@gradoracle.kernel(scaled)
def half_silent(x: Tensor, w: Tensor) -> Tensor:
    return HalfDetached.apply(x, w)


@gradoracle.kernel(scaled, claims=FIRST_ORDER)
def first_order(x: Tensor, w: Tensor) -> Tensor:
    return Detached.apply(x, w)


@gradoracle.kernel(scaled, claims=("forward", "vjp", "hvp"))
def second_order(x: Tensor, w: Tensor) -> Tensor:
    return Detached.apply(x, w)


@gradoracle.kernel(scaled, claims=("forward", "vjp", "jvp"))
def forward_mode(x: Tensor, w: Tensor) -> Tensor:
    return Detached.apply(x, w)


@gradoracle.kernel(scaled)
def decode(x: Tensor, w: Tensor) -> Tensor:
    return (x * torch.sin(w)).detach()


@gradoracle.kernel(scaled)
def sometimes(x: Tensor, w: Tensor) -> Tensor:
    out = x * torch.sin(w)
    return out.detach() if x.shape[1] == 5 else out


@gradoracle.kernel(scaled)
def far(x: Tensor, w: Tensor) -> Tensor:
    off = torch.sin(w.double()) - torch.sin(w)
    return x * (torch.sin(w) * (1 + 0.1 * off.sign().to(x.dtype)))  # a tenth, which is 0 in float64


@gradoracle.kernel(scaled)
def in_bfloat16(x: Tensor, w: Tensor) -> Tensor:
    return (x.bfloat16() * torch.sin(w.bfloat16())).to(x.dtype)


def vjp(inputs: Any, cotangents: Any, options: Any, blocks: Any) -> Any:
    (x, w), (g,) = inputs.values(), cotangents.values()
    return g * torch.sin(w), (g * x * torch.cos(w)).sum(0)


class Breaks(torch.autograd.Function):
    """Its backward raises what no caller should see, for rows of 5."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        return Scaled.forward(ctx, x, w)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        if given[0].shape[1] == 5:
            raise KeyError("block")
        return Detached.backward(ctx, *given)


class _Inner(Detached):
    """Its backward raises a KeyError."""

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        raise KeyError("block")


class BreaksTwice(Detached):
    """Its double backward raises what no caller should see."""

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        (x, w), (g,) = ctx.saved_tensors, given
        return _Inner.apply(g, w), (g * x * torch.cos(w)).sum(0)


class Overwrites(Detached):
    """Its backward writes dx over the cotangent."""

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        dx, dw = Detached.backward(ctx, *given)
        return given[0].detach().copy_(dx), dw


class OverwritesTwice(Detached):
    """A right gradient of x; its backward doubles the cotangent that it was given in the forward."""

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        found = Detached.backward(ctx, *given)
        ctx.saved_tensors[0].detach().mul_(2)
        return found


class Second(Detached):
    """Its double backward, which it does not claim, writes to the cotangent."""

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        (x, w), (g,) = ctx.saved_tensors, given
        return OverwritesTwice.apply(g, w), (g * x * torch.cos(w)).sum(0)


@gradoracle.kernel(scaled)
def overwrites(x: Tensor, w: Tensor) -> Tensor:
    return Overwrites.apply(x, w)


@gradoracle.kernel(scaled)
def overwrites_twice(x: Tensor, w: Tensor) -> Tensor:
    return Second.apply(x, w)


@gradoracle.kernel(scaled)
def breaks(x: Tensor, w: Tensor) -> Tensor:
    return Breaks.apply(x, w)


@gradoracle.kernel(scaled)
def breaks_twice(x: Tensor, w: Tensor) -> Tensor:
    return BreaksTwice.apply(x, w)


@gradoracle.kernel(scaled, vjp=vjp)
def besides(x: Tensor, w: Tensor) -> Tensor:
    return Scaled.apply(x, w)


@gradoracle.kernel(scaled, vjp=vjp)
def alone(x: Tensor, w: Tensor) -> Tensor:
    return (x * torch.sin(w)).detach()


@functools.cache
def report_of(kernel: str, **fields: Any) -> Report:
    return check(Request(f"{__file__}:{kernel}", device="cpu", dtypes=("float32",), examples=12, workers=0, **fields))


@pytest.mark.parametrize(
    ("kernel", "code", "shown"),
    [
        ("right", 0, "forward ✓  VJP ✓  JVP ✓  HVP ✓"),
        ("silent", 0, "forward ✓  VJP ✓  JVP - not offered  HVP ! silently zero"),
        ("wrong_tangent", 1, "forward ✓  VJP ✓  JVP ✗ wrong  HVP ! silently zero"),
        ("half_silent", 0, "forward ✓  VJP ✓  JVP - not offered  HVP ! wrong, not claimed"),
        ("breaks", 1, "forward ✓  VJP ✗ wrong  JVP - not offered  HVP ! silently zero"),
        ("overwrites", 1, "forward ✓  VJP ✗ wrong  JVP - not offered  HVP ! silently zero"),
        ("overwrites_twice", 0, "forward ✓  VJP ✓  JVP - not offered  HVP ! wrong, not claimed"),
        ("breaks_twice", 0, "forward ✓  VJP ✓  JVP - not offered  HVP - not offered"),
        ("first_order", 0, "forward ✓  VJP ✓  JVP - not claimed  HVP - not claimed"),
        ("second_order", 1, "forward ✓  VJP ✓  JVP - not claimed  HVP ✗ wrong"),
        ("forward_mode", 1, "forward ✓  VJP ✓  JVP ✗ wrong  HVP - not claimed"),
        ("decode", 0, "forward ✓  VJP - not offered  JVP - not offered  HVP - not offered"),
        ("besides", 1, "forward ✓  VJP ✗ wrong  JVP - not offered  HVP - not offered"),
        ("alone", 0, "forward ✓  VJP ✓  JVP - not offered  HVP - not offered"),
    ],
)
def test_the_line_says_what_is_known_of_each_derivative(kernel: str, code: int, shown: str) -> None:
    report = report_of(kernel)
    assert line(report, kernel) == shown and report.exit_code == code


def test_a_fact_is_shown_again_by_the_call_that_showed_it() -> None:
    """The call of the property's own case is made again: alone, the property evaluates no HVP."""
    report = report_of("overwrites_twice", fail_on=Severity.ROBUSTNESS)
    assert line(report, "overwrites_twice").endswith("HVP ✗ robustness")
    (verdict,) = [each for each in report.verdicts if each.status is Status.VIOLATED]
    shown = verdict.counterexample
    assert shown is not None and "N=1 " in shown.case and not shown.message
    assert [each.call for each in shown.findings if each.outcome is Outcome.VIOLATED] == [Derivative.HVP]


def test_what_is_wrong_for_one_derivative_is_not_claimed_for_another() -> None:
    """A race in the launches of the VJP and of an HVP that autograd derives."""
    races = tuple(Finding(f"launches of {each.value}", Outcome.VIOLATED, "exact", call=each) for each in SECOND_ORDER)
    found = Verdict(
        "races", "k", "float32", Status.VIOLATED, severity=Severity.WRONG, counterexample=Counterexample("c", races)
    )
    report = Report("k", "", ["k"], "cpu", 0, {}, {}, [found])
    for claim, mark in ((OFFERED, Mark.NOTED), (CLAIMED, Mark.FAILS)):
        report.claims = {"k": {"forward": CLAIMED, "vjp": CLAIMED, "hvp": claim}}
        known = standings(report, "k")
        assert (known[Derivative.VJP].mark, known[Derivative.HVP].mark) == (Mark.FAILS, mark)
        assert known[Derivative.FORWARD].mark is Mark.OPEN


@pytest.mark.parametrize(("status", "known"), [(Status.HOLDS, HOLDS), (Status.NOT_CHECKED, OPEN)])
def test_a_derivative_that_is_never_compared_with_the_truth_is_undecided(status: Status, known: Standing) -> None:
    """Other laws of the VJP hold; its budgets are too wide in one dtype, and in the other as ``status`` has it."""
    other = Verdict("vjp_is_linear", "k", "bfloat16", Status.HOLDS, derivative=Derivative.VJP)
    compared = [
        Verdict("vjp_matches_the_oracle", "k", dtype, found, kind=PropertyKind.ORACLE, derivative=Derivative.VJP)
        for dtype, found in (("bfloat16", Status.NOT_CHECKED), ("float32", status))
    ]
    report = Report("k", "", ["k"], "cpu", 0, {}, {}, [other, *compared])
    assert standings(report, "k")[Derivative.VJP] == known
    report.verdicts = [other]  # nothing else was asked for
    assert standings(report, "k")[Derivative.VJP] == HOLDS


def test_a_claim_of_the_request_replaces_that_of_the_kernel() -> None:
    narrow = report_of("silent", claims=FIRST_ORDER)
    found = standings(narrow, "silent")
    assert found[Derivative.JVP] == found[Derivative.HVP] == ABSENT
    names = {verdict.property_name for verdict in narrow.verdicts}
    higher = ("jvp", "hvp_m", "hvp_is", "forward_over", "reverse_over", "an_absent")
    assert not any(name.startswith(higher) for name in names)
    wide = report_of("silent", claims=("forward", "vjp", "hvp"))
    assert wide.exit_code == 1 and standings(wide, "silent")[Derivative.HVP] == WRONG
    raising = report_of("breaks_twice", claims=("forward", "vjp", "hvp"))
    _, *others = standings(raising, "breaks_twice").values()
    assert raising.exit_code == 1 and others == [Standing(Mark.HOLDS), ABSENT, WRONG]


def test_an_error_in_what_is_not_claimed_is_of_robustness_and_says_the_mend() -> None:
    (verdict,) = [each for each in report_of("silent").verdicts if each.status is Status.VIOLATED]
    assert verdict.severity is Severity.ROBUSTNESS and not verdict.counts(None) and verdict.counts(Severity.ROBUSTNESS)
    assert "once_differentiable" in terminal.render([report_of("silent")])


def test_outputs_that_require_grad_on_some_cases_alone_are_wrong_on_the_others() -> None:
    report = report_of("sometimes")
    (verdict,) = [each for each in report.verdicts if each.property_name == "vjp_matches_the_oracle"]
    assert verdict.status is Status.VIOLATED and verdict.severity is Severity.WRONG and report.exit_code == 1
    assert verdict.counterexample is not None and "N=5" in verdict.counterexample.case
    assert "on other cases" in verdict.counterexample.message


def test_lost_precision_that_no_preset_explains_is_wrong_with_the_number() -> None:
    report = report_of("far", property="forward_matches_the_oracle")
    (verdict,) = report.verdicts
    assert verdict.severity is Severity.WRONG and report.exit_code == 1
    times = re.search(r"([\d.e+]+) times what eager-bf16 ", verdict.severity_note)
    assert times is not None and float(times[1]) > 1


def test_what_is_computed_in_the_next_lower_dtype_is_lost_precision() -> None:
    report = report_of("in_bfloat16")
    assert {standing.words for standing in standings(report, "in_bfloat16").values()} == {"precision lost"}
    assert report.exit_code == 0 and {each.keeps for each in report.verdicts if each.keeps} == {"eager-bf16"}


def test_every_view_has_the_line() -> None:
    report = report_of("silent")
    shown = line(report, "silent")
    assert f"\n  {shown}\n" in terminal.render([report]) and " ".join(shown.split()) in markdown.render([report])
    assert shown in html.render([report]) and shown in github.render([report]).replace("%0A", "\n")
    assert '"hvp": "! silently zero"' in json.render([report])
    written = ElementTree.fromstring(junit.render([report])).iter("property")
    assert "! silently zero" in [each.get("value") for each in written if each.get("name") == "silent hvp"]


def test_claims_are_names_of_derivatives() -> None:
    assert [each.value for each in claims_of(["vjp"])] == ["forward", "vjp"]
    with pytest.raises(ValueError, match=r"'grad' cannot be claimed; expected some of forward, vjp, jvp, hvp"):
        gradoracle.kernel(scaled, claims=["grad"])
    with pytest.raises(UsageError, match="'grad' is unknown"):
        from gradoracle.project.values import claims

        claims("forward,grad")


@gradoracle.family(dims=SIZES)
def shifted(x: Float[Tensor, "B N"], *, eps: float = 0.5, times: int = 1) -> Float[Tensor, "B N"]:
    return (x + eps) * times


@gradoracle.kernel(shifted, dims={"N": gradoracle.multiples(2, 8)})
def ignores_times(x: Tensor, eps: float = 0.5, times: int = 1) -> Tensor:
    return x + eps


@gradoracle.kernel(shifted)
def ignores_eps(x: Tensor, eps: float = 0.5, times: int = 1) -> Tensor:
    return (x + 0.5) * times


def test_an_option_of_one_value_and_fewer_sizes_are_said() -> None:
    report = report_of("ignores_times", family=f"{__file__}:shifted")
    assert report.exit_code == 0
    (note,) = [note for note in report.notes if "passes" in note]
    assert note.startswith("times: always 1,") and "options={'times': (...)}" in note
    assert report.narrowed == {"ignores_times": "N=2:8:2"}
    assert "narrows  N=2:8:2" in terminal.render([report])


def test_a_kernel_that_ignores_a_float_option_of_which_only_the_default_is_known_is_wrong() -> None:
    report = report_of("ignores_eps", family=f"{__file__}:shifted")
    assert report.exit_code == 1
    shown = [verdict.counterexample.case for verdict in report.verdicts if verdict.counterexample is not None]
    assert any("--eps=0.375" in case for case in shown)
