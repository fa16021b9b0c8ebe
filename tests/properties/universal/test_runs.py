"""Properties of repetition, memory and arguments: what they allow, and what their findings say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gradoracle.properties.universal import UNIVERSAL
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.check.judge_property import judge_property
from gradoracle.model.case import Draw
from gradoracle.model.dims import sizes
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status
from tests.properties.judging import PROPERTIES
from tests.properties.toys import CASE, RIGHT, WEIGH, evidence, gradients, judged, kernel, right, weigh
from tests.properties.universal.wrong_runs import with_fault

TWICE = PROPERTIES["backward_twice_with_retain_graph_gives_the_same"]


def test_a_declared_mutation_is_allowed_and_leaves_the_sample_alone():
    prop = PROPERTIES["inputs_and_cotangents_are_unmodified"]
    assert judged(prop, with_fault("scales its input", mutates=("x",))).status is Status.HOLDS
    one = evidence(with_fault("scales its input", mutates=("x",)))
    before = one.sample.inputs["x"].clone()
    one.vjp()
    assert torch.equal(one.sample.inputs["x"], before)


def test_a_kernel_that_returns_its_input_is_right():
    """What it gave is its argument, so it changes with it."""

    @gradoracle.family(outputs=("o",))
    def same(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        return x

    prop, case = PROPERTIES["first_call_equals_second"], replace(CASE, family="same")
    for call in (lambda x: x, lambda x: x.clone()):
        assert judged(prop, Kernel("same", "same", call, deterministic=True), case, same).status is Status.HOLDS


def test_a_wrong_block_configuration_is_found_among_right_ones():
    prop = PROPERTIES["every_block_configuration_agrees"]

    def tiled(x, y, blocks=16):
        p, s = right(x, y)
        return (p * 1.001 if blocks == 64 else p), s

    fields = {"blocks": {"small": 16, "medium": 32, "large": 64}}
    found = {}
    for seed in range(0, 15, 5):
        case = replace(CASE, seed=seed)
        result = judged(prop, kernel(tiled, **fields), case)
        found[result.findings[0].tensor.split("blocks ")[1]] = result.status
    assert found == {"small": Status.HOLDS, "medium": Status.HOLDS, "large": Status.VIOLATED}


BAD, ACCEPTED = PROPERTIES["bad_arguments_raise_value_error"], PROPERTIES["declared_support_is_accepted"]


def messages(result):
    return {f.tensor: f.message for f in result.findings}


def test_guardrails_are_held_to_argument_value_and_want():
    assert judged(BAD, RIGHT).status is Status.HOLDS
    assert {"x of dtype int32", "x on device meta", "y with N larger by one"} <= set(messages(judged(BAD, RIGHT)))

    def unchecked(x, y):
        return torch.softmax(x, -1) * y * y, torch.logsumexp(x, -1)

    def curt(x, y):
        try:
            return right(x, y)
        except ValueError:
            raise ValueError("bad arguments") from None

    def typed(x, y):
        try:
            return right(x, y)
        except ValueError as error:
            raise TypeError(str(error)) from None

    assert judged(BAD, kernel(unchecked)).status is Status.VIOLATED
    found = judged(BAD, kernel(curt))
    assert found.status is Status.VIOLATED
    told = messages(found)["x of dtype int32"]
    assert all(part in told for part in ("does not name", "(x)", "(int32)", "expected"))
    assert "raised TypeError" in messages(judged(BAD, kernel(typed)))["x of dtype int32"]
    assert judged(BAD, kernel(typed, outside=True)).status is Status.HOLDS

    def indexed(x, y):
        return right(x, y) if x.size(1) else None

    assert judged(BAD, kernel(indexed)).status is Status.VIOLATED
    assert judged(BAD, kernel(indexed, outside=True)).status is Status.HOLDS


def test_an_error_of_the_interpreter_is_no_answer_of_an_outside_kernel():
    class InterpreterError(Exception):
        """As Triton's interpreter raises for any error in a program."""

    def interpreted(x, y):
        if x.dtype != torch.float32 or x.dim() != 2 or x.device.type == "meta":
            raise InterpreterError("cannot convert None to tensor")
        return right(x, y)

    found = judged(BAD, kernel(interpreted, outside=True))
    assert found.status is Status.NOT_CHECKED and "Triton's interpreter" in found.reason
    arguments = found.reason.partition(": ")[2].split(", ")
    assert set(arguments) == {
        "x of dtype int32",
        "x with a rank too large",
        "x on device meta",
        "x with a rank too small",
    }
    assert judged(BAD, kernel(interpreted)).status is Status.VIOLATED  # a shipped kernel looks before it launches

    def broken(x, y):
        if x.dtype != torch.float32:
            raise KeyError(x.dtype)
        return interpreted(x, y)

    assert judged(BAD, kernel(broken, outside=True)).status is Status.VIOLATED


class Marked(torch.autograd.Function):
    """softmax(x) y^2 and logsumexp(x), which is marked non-differentiable; ``wrong`` once or always."""

    @staticmethod
    def forward(ctx, x, y, wrong):
        ctx.save_for_backward(x, y)
        ctx.wrong = wrong
        s = torch.logsumexp(x, -1)
        ctx.mark_non_differentiable(s)
        return torch.softmax(x, -1) * y * y, s

    @staticmethod
    def backward(ctx, g, _):
        x, y = ctx.saved_tensors
        dx, dy = gradients(x, y, g)
        dx = 2 * dx if ctx.wrong == "twice" else dx
        ctx.wrong = "twice" if ctx.wrong == "second" else ctx.wrong
        return dx, dy, None


@gradoracle.family(outputs=("p", "s"))
def with_statistics(
    x: Float[Tensor, "B N"], y: Float[Tensor, "B N"]
) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B"]]:
    """softmax(x) y^2, and logsumexp(x) as a number without a derivative."""
    return torch.softmax(x, -1) * y * y, torch.logsumexp(x.detach(), -1)


@pytest.mark.parametrize("seed", [0, 1])
def test_an_output_marked_non_differentiable_has_no_gradient_and_needs_none(seed):
    case = replace(CASE, family="with_statistics", seed=seed)
    properties = [PROPERTIES[name] for name in ("vjp_matches_the_oracle", "vjp_of_a_cotangent_on_each_output_alone",
                                    "hvp_matches_the_oracle", TWICE.name)]  # fmt: skip

    def marked(wrong=""):
        return kernel(lambda x, y: Marked.apply(x, y, wrong), family="with_statistics")

    for prop in properties:
        assert judged(prop, marked(), case, with_statistics).status is Status.HOLDS, prop.name
    assert judged(TWICE, marked("second"), case, with_statistics).status is Status.VIOLATED
    assert judged(properties[0], marked("twice"), case, with_statistics).status is Status.VIOLATED
    alone = {seed: judged(properties[1], marked(), replace(CASE, seed=seed)).status for seed in (seed,)}
    assert alone[seed] is (Status.HOLDS if seed % 2 == 0 else Status.VIOLATED)  # of pick, s has a gradient


def test_an_outside_kernel_may_take_what_the_definition_takes_and_no_more():
    outside = replace(WEIGH, outside=True)
    assert judged(BAD, outside, replace(CASE, family="weigh"), weigh).status is Status.HOLDS

    def cut(x, w):
        return torch.sin(x) * w[: x.shape[-1]]

    found = judged(BAD, replace(outside, call=cut), replace(CASE, family="weigh"), weigh)
    assert found.status is Status.NOT_CHECKED
    assert "the definition refuses" in found.reason and found.reason.endswith(": w with N larger by one")

    def breaking(x, w):
        if w.shape[-1] != x.shape[-1]:
            raise KeyError(w.shape[-1])
        return torch.sin(x) * w

    assert judged(BAD, replace(outside, call=breaking), replace(CASE, family="weigh"), weigh).status is Status.VIOLATED


def test_a_refusal_inside_declared_support_is_a_violation():
    def narrow(x, y):
        if x.shape[0] > 2:
            raise ValueError(f"x has B = {x.shape[0]}: expected at most 2")
        return right(x, y)

    assert judged(ACCEPTED, RIGHT).status is Status.HOLDS
    assert judged(ACCEPTED, kernel(narrow)).status is Status.VIOLATED
    assert judged(ACCEPTED, kernel(narrow, outside=True, dims={"B": sizes(1, 8)})).status is Status.VIOLATED
    assert ACCEPTED.applies(CASE, kernel(narrow, outside=True, dtypes=None)) is not None
    sliced = CASE.with_draws(x=Draw("normal", "sliced"))
    assert ACCEPTED.applies(sliced, kernel(narrow, outside=True)) is not None
    assert ACCEPTED.applies(sliced, RIGHT) is None


def test_properties_that_run_again_keep_to_small_cases():
    long = CASE.with_dims(N=131_072)
    spared = {prop.name for prop in UNIVERSAL if prop.applies(long, RIGHT) is None}
    assert spared == {
        "forward_matches_the_oracle",
        "vjp_matches_the_oracle",
        "finite_where_the_truth_is_finite",
        "no_memory_is_left_unwritten",
        "writes_stay_inside_their_tensors",
        "every_access_stays_inside_its_tensor",
        "programs_of_a_launch_do_not_race",
        "a_barrier_stands_between_a_store_and_a_load",
        "a_barrier_stands_between_two_stores",
        "nothing_is_loaded_before_it_is_written",
        "inputs_and_cotangents_are_unmodified",
        "bad_arguments_raise_value_error",
        "declared_support_is_accepted",
    }


def test_memory_properties_look_at_every_derivative_that_was_run():
    one = evidence(RIGHT)
    one.hvp()
    found = judge_property(PROPERTIES["writes_stay_inside_their_tensors"], one)
    assert [f.tensor for f in found.findings] == ["memory of forward", "memory of vjp", "memory of hvp"]
