"""An input that is declared to have no gradient: nothing moves along it, and what others give is judged."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status
from gradoracle.oracle.truth import Oracle
from tests.properties.judging import judge


@gradoracle.family(dims={"N": gradoracle.sizes(1, 12), "D": gradoracle.sizes(1, 20)})
def squares(x: Float[Tensor, "N D"], w: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """x^2 w^2."""
    return x * x * w * w


class _Squares(torch.autograd.Function):
    factor = 2.0

    @staticmethod
    def forward(x, w):
        return x * x * w * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @classmethod
    def slope(cls, ctx, along):
        x, w = ctx.saved_tensors
        return cls.factor * x * w * w * along

    @staticmethod
    def backward(ctx, g):
        return _Squares.slope(ctx, g), None

    @staticmethod
    def jvp(ctx, tx, tw):
        return _Squares.slope(ctx, tx)


class _Large(_Squares):
    factor = 2.02

    @staticmethod
    def backward(ctx, g):
        return _Large.slope(ctx, g), None

    @staticmethod
    def jvp(ctx, tx, tw):
        return _Large.slope(ctx, tx)


@gradoracle.kernel(squares, no_gradient=("w",))
def right(x, w):
    return _Squares.apply(x, w)


@gradoracle.kernel(squares, no_gradient=("w",))
def detached(x, w):
    return x * x * (w * w).detach()


@gradoracle.kernel(squares, no_gradient=("w",))
def large(x, w):
    return _Large.apply(x, w)


@gradoracle.kernel(squares, no_gradient=("x", "w"))
def none(x, w):
    return x * x * (w * w)


PROPERTIES = ("vjp_matches_the_oracle", "jvp_matches_the_oracle", "hvp_matches_the_oracle")
CASE = "case:1 squares cpu float32 family=squares N=3 D=5 seed=4"


@pytest.mark.parametrize(
    "property_name", [*PROPERTIES, "inputs_and_cotangents_are_unmodified", "jvp_of_a_tangent_on_each_input_alone"]
)
@pytest.mark.parametrize("kernel", [right, detached], ids=lambda kernel: kernel.name)
def test_a_kernel_that_ignores_its_tangent_holds(kernel, property_name):
    assert judge(property_name, CASE, kernel, Oracle(squares, "float64")).status is Status.HOLDS


@pytest.mark.parametrize("property_name", PROPERTIES)
def test_what_other_inputs_give_is_judged(property_name):
    assert judge(property_name, CASE, large, Oracle(squares, "float64")).status is Status.VIOLATED


def test_where_no_input_has_a_gradient_there_is_no_second_derivative() -> None:
    found = judge("hvp_matches_the_oracle", CASE, none, Oracle(squares, "float64"))
    assert (found.status, found.why) == (Status.NOT_CHECKED, Reason.NO_DERIVATIVE)
