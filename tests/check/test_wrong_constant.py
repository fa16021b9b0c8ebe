"""The constant that is wrong in a kernel's source."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float
from places import loaded
from torch import Tensor

import gradoracle
from gradoracle.cases.sample import build
from gradoracle.check.evidence import Evidence
from gradoracle.check.widened import widened
from gradoracle.check.wrong_constant import wrong_constant
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.host import interpreter
from gradoracle.model.case import Case, Draw
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Outcome
from gradoracle.model.kernel import Kernel
from gradoracle.oracle.truth import Oracle

pytestmark = pytest.mark.skipif(
    interpreter.explain_unavailable() is not None, reason=str(interpreter.explain_unavailable())
)
miswritten = loaded("check.miswritten")
softmax = loaded("properties.universal.widened")
FORWARD, VJP = Derivative.FORWARD, Derivative.VJP
FAMILIES = {
    "gelu": miswritten.gelu,
    "rms": miswritten.rms,
    "scaled_softmax": softmax.scaled_softmax,
    "normed": softmax.normed,
}


def evidence_of(kernel: Kernel, dtype: str = "bfloat16", rows: int = 8) -> Evidence:
    family = FAMILIES[kernel.family]
    case = Case(kernel.family, {"B": rows, "N": 33}, dtype=dtype, seed=3)
    return Evidence(case, build(case, family.signature), KernelRunner(family, kernel), Oracle(family, "float64"))


def wrong(evidence: Evidence, derivative: Derivative) -> list[str]:
    return [each.tensor for each in widened(evidence).compare(derivative) if each.outcome is Outcome.VIOLATED]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("fault", "derivative", "value", "text"),
    [
        ("root", FORWARD, 0.797, "# the root of 2 / pi"),
        ("cubic", FORWARD, 0.0447, "# the cubic term"),
        ("log", FORWARD, 1.4427, "# log2 e"),
        ("log", VJP, 1.4427, "# log2 e"),
        ("factor", FORWARD, 1.001, "# a factor"),
    ],
)
def test_a_wrong_number_of_the_source_is_named(
    fault: str, derivative: Derivative, value: float, text: str, dtype: str
) -> None:
    evidence = evidence_of(miswritten.of_gelu(fault), dtype)
    names = wrong(evidence, derivative)
    assert names
    found = wrong_constant(evidence, derivative, names)
    assert found is not None
    assert found.value == value
    assert found.source.endswith(text)
    assert found.fitted == pytest.approx(miswritten.TRUE[fault], rel=1e-15)
    assert found.uncertainty < abs(found.value - found.fitted)
    assert found.name == miswritten.NAMES[fault]


@pytest.mark.parametrize(
    ("kernel", "argument", "value", "fitted"),
    [
        (softmax.softmax("slip", slip=1e-3), "factor", softmax.SCALE * 1.001, softmax.SCALE),
        (softmax.softmax("1.4427", log2_e=1.4427), "log2_e", 1.4427, softmax.LOG2_E),
        (miswritten.of_rms(2e-6), "eps", 2e-6, 1e-6),
    ],
)
def test_a_wrong_argument_of_a_launch_is_named(kernel: Kernel, argument: str, value: float, fitted: float) -> None:
    evidence = evidence_of(kernel)
    names = wrong(evidence, FORWARD)
    assert names
    found = wrong_constant(evidence, FORWARD, names)
    assert found is not None
    own = next(each for each in (found, *found.others) if each.argument == argument)
    assert own.value == value
    assert own.fitted == pytest.approx(fitted, abs=own.uncertainty)


def test_of_equal_numbers_at_two_places_the_wrong_one_is_named() -> None:
    """Together they explain the error, too, since eps has hardly an effect on large inputs."""
    case = Case("rms", {"B": 8, "N": 33}, dtype="bfloat16", seed=3, draws={"x": Draw("normal:30")})
    kernel, family = miswritten.of_rms(again=True), miswritten.rms
    evidence = Evidence(case, build(case, family.signature), KernelRunner(family, kernel), Oracle(family, "float64"))
    found = wrong_constant(evidence, FORWARD, wrong(evidence, FORWARD))
    assert found is not None and (found.value, found.uses, found.others) == (1e-6, 1, ())
    assert found.source.endswith("# as large as eps")


@pytest.mark.parametrize(
    ("kernel", "derivative"),
    [
        (miswritten.of_gelu("tail"), FORWARD),
        (softmax.norm("eps outside the root", outside=True), FORWARD),
        (miswritten.of_gelu("factors"), FORWARD),  # 0.9 should be 1 / 1.1, which no definition has
    ],
)
def test_no_number_is_named_where_none_explains_the_error(kernel: Kernel, derivative: Derivative) -> None:
    evidence = evidence_of(kernel)
    names = wrong(evidence, derivative)
    assert names
    assert wrong_constant(evidence, derivative, names) is None


@gradoracle.family
def turned(x: Float[Tensor, "B 5"], y: Float[Tensor, "B 5"]) -> Float[Tensor, "B 5"]:
    return x * torch.cos(torch.arange(5)) - y * torch.sin(torch.arange(5))


class Turned(torch.autograd.Function):
    """Turns by ``forth`` times an angle that is too large, and in backward by ``back`` times that angle."""

    @staticmethod
    def forward(ctx, x, y, forth, back):
        angle = torch.arange(5, dtype=x.dtype) * 1.03125
        ctx.turn = torch.cos(angle * back), torch.sin(angle * back)
        return x * torch.cos(angle * forth) - y * torch.sin(angle * forth)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * ctx.turn[0], -g * ctx.turn[1], None, None


@pytest.mark.parametrize(
    ("forth", "back", "derivative", "named"),
    [(32 / 33, 1, VJP, False), (1, 1, VJP, True), (1, 1, FORWARD, True)],
)
def test_no_number_is_named_that_would_make_a_right_output_wrong(
    forth: float, back: float, derivative: Derivative, named: bool
) -> None:
    """1 in place of 1.03125 turns backward as it should, but not forward where ``forth`` makes up for it."""
    kernel = gradoracle.kernel(turned, name="turns")(lambda x, y: Turned.apply(x, y, forth, back))
    case = Case("turned", {"B": 3}, dtype="float32", seed=3)
    own = Evidence(case, build(case, turned.signature), KernelRunner(turned, kernel), Oracle(turned, "float64"))
    names = wrong(own, derivative)
    assert names and (wrong_constant(own, derivative, names) is not None) == named


@pytest.mark.parametrize("limit", [{"calls": 1}, {"seconds": 0.0}])
def test_no_number_is_named_if_no_call_is_left(limit: dict[str, float]) -> None:
    evidence = evidence_of(miswritten.of_gelu("root"))
    assert wrong_constant(evidence, FORWARD, wrong(evidence, FORWARD), **limit) is None
