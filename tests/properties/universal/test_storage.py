"""A kernel that writes to its arguments: its property reports it, and no other is judged on what was written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from gradoracle.properties.universal import UNIVERSAL

from gradoracle.cases.sample import build
from gradoracle.check.judge_property import judge_property
from gradoracle.check.widened import widened
from gradoracle.model.finding import Outcome
from gradoracle.model.verdict import Status
from gradoracle.project.target import shipped
from tests.properties.judging import PROPERTIES
from tests.properties.toys import CASE, RIGHT, evidence, kernel, pick, right

UNMODIFIED = PROPERTIES["inputs_and_cotangents_are_unmodified"]
FORWARD, VJP = PROPERTIES["forward_matches_the_oracle"], PROPERTIES["vjp_matches_the_oracle"]


def doubling(x, y):
    """Right, but for x, which is twice as large afterwards."""
    once = x.clone()
    with torch.no_grad():
        x.mul_(2)
    return right(once, y)


def doubled_first(x, y):
    """Wrong, since it reads what it has written."""
    with torch.no_grad():
        x.mul_(2)
    return right(x, y)


def wrong(result: Any) -> list[str]:
    return [f.tensor for f in result.findings if f.outcome is Outcome.VIOLATED]


def test_the_property_leads_and_says_which_call_changed_what() -> None:
    found = judge_property(UNMODIFIED, evidence(kernel(doubling)))
    assert (found.status, wrong(found)) == (Status.VIOLATED, ["x"])
    (message,) = (f.message for f in found.findings if f.tensor == "x")
    assert message.startswith("21 of 21 elements") and message.endswith("by forward")
    others = {*UNIVERSAL, *(prop for target in shipped().values() for prop in target.family.properties)} - {UNMODIFIED}
    assert max(prop.rank for prop in others) < UNMODIFIED.rank
    assert judge_property(UNMODIFIED, evidence(RIGHT)).status is Status.HOLDS


def test_other_properties_judge_on_what_the_kernel_was_given() -> None:
    one = evidence(kernel(doubling))
    assert [judge_property(prop, one).status for prop in (FORWARD, VJP, FORWARD)] == [Status.HOLDS] * 3
    assert torch.equal(one.sample.inputs["x"], build(CASE, pick.signature).inputs["x"])
    other = evidence(kernel(doubled_first))
    assert judge_property(FORWARD, other).status is Status.VIOLATED, "the truth is that of x, and not of 2 x"


def test_a_backward_that_is_refused_does_not_hide_what_forward_wrote() -> None:
    def in_place(x, y):
        return right(x.mul_(2), y)  # PyTorch refuses this of a leaf that requires grad

    one = evidence(kernel(in_place))
    assert judge_property(VJP, one).status is Status.REFUSED
    assert judge_property(UNMODIFIED, one).status is Status.VIOLATED

    def refusing(x, y):
        raise ValueError("no")

    assert judge_property(UNMODIFIED, evidence(kernel(refusing))).status is Status.REFUSED


def zeroed(inputs: Any, options: Any, blocks: Any) -> Tensor:
    """A further entry point that writes to its input."""
    return inputs["x"].zero_()


def test_a_call_beside_the_derivatives_is_undone_too() -> None:
    one = evidence(replace(kernel(doubling), extras={"zeroed": zeroed}))
    before = one.sample.inputs["x"].clone()
    one.entry("zeroed", {"x": before.shape})
    assert torch.equal(one.sample.inputs["x"], before) and one.sample.changes["x"][0] == "zeroed"


class InPlace(torch.autograd.Function):
    """softmax(x) y^2 and logsumexp(x), whose gradient of x is written over the cotangent and returned as it."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return right(x, y)

    @staticmethod
    def backward(ctx, dp, ds):
        x, y = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            dx, dy = torch.autograd.grad(right(x, y), (x, y), (dp, ds))
        return dp.copy_(dx), dy


def over_x(x, y):
    """Right, and the first output is returned in the memory of x."""
    p, s = right(x, y)
    return x.detach().copy_(p), s


def test_a_result_in_memory_of_an_argument_is_judged_by_what_was_returned() -> None:
    for call, changed in ((InPlace.apply, "dp"), (over_x, "x")):
        one = evidence(kernel(call))
        assert judge_property(FORWARD, one).status is Status.HOLDS
        assert judge_property(UNMODIFIED, one).status is Status.VIOLATED and list(one.sample.changes) == [changed]
        wide = widened(evidence(kernel(call)))
        before = {name: tensor.clone() for name, tensor in wide.sample.tensors().items()}
        assert judge_property(FORWARD, wide).status is Status.HOLDS
        assert all(torch.equal(tensor, before[n]) for n, tensor in wide.sample.tensors().items())
    assert judge_property(VJP, evidence(kernel(InPlace.apply))).status is Status.HOLDS
    assert judge_property(VJP, widened(evidence(kernel(InPlace.apply)))).status is Status.HOLDS


def test_a_change_in_a_variant_is_undone_and_reported() -> None:
    one = evidence(kernel(doubling))
    variant = one.variant(
        "2 g", lambda sample: sample.with_cotangents(**{n: 2 * g for n, g in sample.cotangents.items()})
    )
    before = one.sample.inputs["x"].clone()
    variant.vjp()
    assert torch.equal(one.sample.inputs["x"], before)
    assert one.sample.changes["x"][0] == "2 g: vjp"
    assert wrong(judge_property(UNMODIFIED, one)) == ["x"]
