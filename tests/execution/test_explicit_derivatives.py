"""Explicit vjp, jvp and hvp get tensors by name, so that a kernel with optional inputs and outputs can have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from sweeps import slow
from torch import Tensor

import gradoracle
from gradoracle.cases.sample import build
from gradoracle.check.run import check
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.case import Case, Draw
from gradoracle.model.derivative import Derivative
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status
from gradoracle.oracle.truth import Oracle, arguments
from gradoracle.project.request import Request

SIZES = {"B": gradoracle.sizes(1, 5), "N": gradoracle.sizes(1, 9)}


@gradoracle.family(outputs=("o", "s"), optional_outputs={"s": "sums"}, dims=SIZES, dtypes=("float32",))
def affine(
    x: Float[Tensor, "B N"],
    *,
    weight: Float[Tensor, "N"] | None = None,
    bias: Float[Tensor, "N"] | None = None,
    sums: bool = False,
) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B"]]:
    o = x.sin() * (1.0 if weight is None else weight) + (0.0 if bias is None else bias)
    return (o, o.square().sum(-1)) if sums else o


def call(x, *, weight=None, bias=None, sums=False):
    return affine.definition(x, weight=weight, bias=bias, sums=sums)


def flat(inputs, options):
    """The call as a function of its tensors in order, and these."""
    names = list(inputs)
    return lambda *tensors: call(**dict(zip(names, tensors, strict=True)), **options), tuple(inputs.values())


def vjp(inputs, cotangents, options, blocks):
    function, given = flat(inputs, options)
    g = tuple(cotangents.values()) if options["sums"] else cotangents["o"]
    return torch.func.vjp(function, *given)[1](g)


def jvp(inputs, tangents, options, blocks):
    function, given = flat(inputs, options)
    assert list(tangents) == list(inputs)
    return torch.func.jvp(function, given, tuple(tangents.values()))


def hvp(inputs, tangents, cotangents, options, blocks):
    _, given = flat(inputs, options)
    names = list(inputs)

    def gradient(*tensors):
        return vjp(dict(zip(names, tensors, strict=True)), cotangents, options, blocks)

    return torch.func.jvp(gradient, given, tuple(tangents.values()))[1]


def without(name, derivative):
    """The derivative with the tangent or cotangent of that name taken for 0, where there is one."""

    def wrong(inputs, *rest):
        *moved, options, blocks = rest
        zeroed = ({n: torch.zeros_like(t) if n == name else t for n, t in named.items()} for named in moved)
        return derivative(inputs, *zeroed, options, blocks)

    return wrong


right = Kernel("right", "affine", call, vjp=vjp, jvp=jvp, hvp=hvp)
jvp_without_weight = replace(right, name="jvp_without_weight", jvp=without("weight", jvp))
jvp_without_bias = replace(right, name="jvp_without_bias", jvp=without("bias", jvp))
hvp_without_weight = replace(right, name="hvp_without_weight", hvp=without("weight", hvp))
vjp_without_sums = replace(right, name="vjp_without_sums", vjp=without("s", vjp))


def statuses(kernel: str) -> dict[str, Status]:
    place, properties = f"{Path(__file__)}:{kernel}", "[vjh]*_matches_the_oracle"
    report = check(Request(place, device="cpu", examples=40, workers=0, property=properties))
    return {verdict.property_name.split("_")[0]: verdict.status for verdict in report.verdicts}


def test_a_correct_kernel_holds_with_each_of_its_optional_inputs() -> None:
    assert statuses("right") == dict.fromkeys(("vjp", "jvp", "hvp"), Status.HOLDS)


@pytest.mark.parametrize(
    ("kernel", "wrong"),
    [
        ("jvp_without_weight", "jvp"),
        slow("jvp_without_bias", "jvp"),
        ("hvp_without_weight", "hvp"),
        ("vjp_without_sums", "vjp"),
    ],
)
def test_an_explicit_derivative_that_drops_an_optional_tensor_is_violated(kernel: str, wrong: str) -> None:
    others = {"vjp", "jvp", "hvp"} - {wrong}
    assert statuses(kernel) == {wrong: Status.VIOLATED, **dict.fromkeys(others, Status.HOLDS)}


def test_two_optional_inputs_of_one_shape_have_truths_of_their_own() -> None:
    oracle, found = Oracle(affine), {}
    for name in ("weight", "bias"):
        sample = build(Case("affine", {"B": 2, "N": 3}, draws={name: Draw()}), affine.signature)
        (found[name],) = oracle.graph(sample, Derivative.FORWARD)(*arguments(affine, sample, Derivative.FORWARD))
        expected = affine.definition(*(sample.inputs[n].double() for n in "x"), **{name: sample.inputs[name].double()})
        assert torch.equal(found[name], expected)
    assert not torch.equal(found["weight"], found["bias"])


def test_an_absent_input_has_no_name_and_a_second_one_keeps_its_own() -> None:
    seen: list[Any] = []

    def recording(inputs: Any, tangents: Any, options: Any, blocks: Any) -> Any:
        seen.append((list(inputs), list(tangents)))
        return jvp(inputs, tangents, options, blocks)

    for draws, names in (({}, ["x"]), ({"bias": Draw()}, ["x", "bias"])):
        sample = build(Case("affine", {"B": 2, "N": 3}, draws=draws), affine.signature)
        KernelRunner(affine, replace(right, jvp=recording)).jvp(sample)
        assert seen.pop() == (names, names)
