"""Forward mode: by torch.func where that works, else by dual tensors, which have memory; a lost tangent is none."""

from __future__ import annotations

from typing import Any

import interpreted
import pytest
import torch
from gradoracle.properties.universal import UNIVERSAL

from gradoracle.check.severity import with_severity
from gradoracle.host import interpreter
from gradoracle.host.autograd import pushed_forward
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Status
from tests.properties.judging import judge_on
from tests.properties.toys import CASE, evidence, judged, kernel

pytestmark = interpreted.NEEDED
interpreter.activate()

from tests import recorded_kernels as launched  # noqa: E402

JVP = next(prop for prop in UNIVERSAL if prop.name == "jvp_matches_the_oracle")
X, T = torch.tensor([[0.5, -1.0, 2.0]]), torch.tensor([[1.0, 0.25, -3.0]])


def copy(x: Any) -> Any:
    """The tensor as a Triton kernel gives it, which needs its memory."""
    x, y = x.contiguous(), torch.empty(x.shape)
    launched.copied[(1,)](x, y, x.numel(), 0, 0, 64)
    return y


class Square(torch.autograd.Function):
    """x^2, launched; its tangent is launched too."""

    @staticmethod
    def forward(x: Any, factor: float) -> Any:
        return copy(x * x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.factor = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return copy(2 * ctx.saved_tensors[0] * g), None

    @staticmethod
    def jvp(ctx: Any, t: Any, _: Any) -> Any:
        return copy(ctx.factor * ctx.saved_tensors[0] * t)


class InOneStep(Square):
    """With its context in forward, which torch.func refuses."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        Square.setup_context(ctx, (x, factor), None)
        return copy(x * x)

    setup_context = torch.autograd.Function.setup_context


def of_square(function: Any, factor: float) -> Any:
    return lambda x, y: (torch.softmax(x, -1) * function.apply(y, factor), torch.logsumexp(x, -1))


@pytest.mark.parametrize("function", [Square, InOneStep])
def test_a_function_that_launches_its_tangent_has_forward_mode(function: Any) -> None:
    (found,) = pushed_forward(lambda x: (function.apply(x, 2.0),), [X], [T], duals=True)
    assert torch.equal(found, 2 * X * T)
    assert judged(JVP, kernel(of_square(function, 2.0)), CASE).status is Status.HOLDS
    own = evidence(kernel(of_square(function, 2.1)), CASE)
    wrong = with_severity(JVP, own, judge_on(JVP, own))
    assert wrong.status is Status.VIOLATED and wrong.severity is Severity.WRONG
    assert [finding.tensor for finding in wrong.findings if finding.outcome.value == "violated"] == ["jvp.p"]


def test_what_only_torch_func_differentiates_keeps_doing_so() -> None:
    def wrapped_alone(x: Any) -> tuple[Any]:
        if not torch._C._functorch.is_gradtrackingtensor(x):
            raise RuntimeError("not within torch.func")
        return (x.sin(),)

    (found,) = pushed_forward(wrapped_alone, [X], [T], duals=True)
    assert torch.equal(found, X.cos() * T)


@pytest.mark.parametrize(("call", "duals"), [(copy, False), (lambda x: copy(x) + x, False), (copy, True)])
def test_a_launch_outside_of_a_function_has_no_tangent_which_is_not_0(call: Any, duals: bool) -> None:
    with pytest.raises(RuntimeError, match="data pointer"):
        pushed_forward(lambda x: (call(x),), [X], [T], duals=duals)


def test_an_output_without_a_tangent_is_constant_where_others_have_one() -> None:
    found = pushed_forward(lambda x: (Square.apply(x, 2.0), x.detach() * 1), [X], [T], duals=True)
    assert torch.equal(found[0], 2 * X * T) and torch.equal(found[1], torch.zeros_like(X))


def test_without_a_jvp_the_reason_is_said() -> None:
    class Without(InOneStep):
        jvp = torch.autograd.Function.jvp

    with pytest.raises(RuntimeError, match="must implement the jvp function"):
        pushed_forward(lambda x: (Without.apply(x, 2.0),), [X], [T], duals=True)
