"""Laws of second derivatives in mixed modes: each has a kernel that it catches; the right one holds beside it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradoracle.properties.universal import UNIVERSAL

from gradoracle.model.verdict import Status
from tests.properties.toys import CASE, judged, kernel, right

LAWS = {law.name: law for law in UNIVERSAL}


class Doubled(torch.autograd.Function):
    """(y, g) -> 2 y g, the backward of a square; its own tangent lacks the term of y."""

    @staticmethod
    def forward(y: Any, g: Any) -> Any:
        return 2 * y * g

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        y, g = ctx.saved_tensors
        return 2 * g * cotangent, 2 * y * cotangent

    @staticmethod
    def jvp(ctx: Any, ty: Any, tg: Any) -> Any:
        y, _ = ctx.saved_tensors
        return 2 * y * tg if tg is not None else 0 * y


class Square(torch.autograd.Function):
    """y^2; right twice in reverse mode."""

    @staticmethod
    def forward(y: Any) -> Any:
        return y * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * ctx.saved_tensors[0] * g

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return 2 * ctx.saved_tensors[0] * t


class BackwardWithoutATangent(Square):
    """Its gradient's tangent is wrong."""

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return Doubled.apply(ctx.saved_tensors[0], g)


class TangentWithoutAGradient(Square):
    """Its tangent's gradient lacks the term of y."""

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return 2 * ctx.saved_tensors[0].detach() * t


class Handed(torch.autograd.Function):
    """g, whose gradient is left out."""

    @staticmethod
    def forward(ctx: Any, g: Any) -> Any:
        return g.clone()

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> None:
        return None


class DropsItsCotangent(torch.autograd.Function):
    """The identity, whose gradient has no gradient in the cotangent."""

    @staticmethod
    def forward(ctx: Any, o: Any) -> Any:
        return o.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return Handed.apply(g)


class NeedsBoth(torch.autograd.Function):
    """softmax(x) y^2, whose gradients can be differentiated where both inputs need one."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        return torch.softmax(x, -1) * y * y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        if not all(ctx.needs_input_grad):
            y = y.detach()
        p = torch.softmax(x, -1)
        inner = g * y * y
        return p * (inner - (inner * p).sum(-1, keepdim=True)), 2 * p * y * g


def of_square(function: type) -> Any:
    """``pick`` with its square by that function."""
    return lambda x, y: (torch.softmax(x, -1) * function.apply(y), torch.logsumexp(x, -1))


WRONG = {
    "reverse_over_forward_gives_hvp_and_vjp": of_square(TangentWithoutAGradient),
    "forward_over_reverse_gives_the_hvp": of_square(BackwardWithoutATangent),
    "double_backward_in_the_cotangents_gives_the_jvp": lambda x, y: (
        DropsItsCotangent.apply(torch.softmax(x, -1) * y * y),
        torch.logsumexp(x, -1),
    ),
    "hvp_of_some_inputs_alone": lambda x, y: (NeedsBoth.apply(x, y), torch.logsumexp(x, -1)),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_law_catches_its_wrong_kernel_where_the_right_one_holds(name: str) -> None:
    for good in (right, of_square(Square)):
        assert judged(LAWS[name], kernel(good), CASE).status is Status.HOLDS
    assert judged(LAWS[name], kernel(WRONG[name]), CASE).status is Status.VIOLATED
    assert judged(LAWS["hvp_matches_the_oracle"], kernel(WRONG[name]), CASE).status is Status.HOLDS


@pytest.mark.parametrize("name", WRONG)
def test_a_kernel_without_such_derivatives_is_not_checked(name: str) -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return right(x, y)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *cotangents: Any) -> Any:
            given = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            with torch.enable_grad():
                return torch.autograd.grad(right(*given), given, cotangents)

    found = judged(LAWS[name], kernel(Once.apply), CASE)
    assert found.status is Status.NOT_CHECKED and found.reason.startswith("no "), found
