"""Laws of repetition, of memory and of arguments: each has a kernel that it catches; the right one holds beside it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from gradoracle.properties.universal import UNIVERSAL
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.check.judge_case import judge_law
from gradoracle.model.case import Draw
from gradoracle.model.dims import sizes
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status
from tests.properties.toys import CASE, RIGHT, WEIGH, evidence, judged, kernel, right, weigh

LAWS = {law.name: law for law in UNIVERSAL}


class Pick(torch.autograd.Function):
    """``pick`` with a backward of its own, whose faults are switched on by name."""

    @staticmethod
    def forward(ctx: Any, x, y, fault: str):
        p = torch.empty_like(x)
        p.copy_(torch.softmax(x, -1))
        out = torch.empty(x.shape, dtype=x.dtype)
        rows = len(x) - 1 if fault == "tail unwritten" else len(x)
        out[:rows] = (p * y * y)[:rows]
        if fault == "writes behind":
            out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(1.0)
        if fault == "writes before":
            out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(1.0)
        if fault == "scales its input":
            x.detach().mul_(0.5)
        if fault == "writes around its input":
            x.detach().as_strided((1,), (1,), x.storage_offset() - 1).fill_(0.0)
        ctx.fault, ctx.kept = fault, p
        ctx.save_for_backward(p, y)
        return out, torch.logsumexp(x, -1)

    @staticmethod
    def backward(ctx: Any, dp, ds):
        p, y = ctx.saved_tensors
        if ctx.fault == "keeps on ctx":
            p = ctx.kept
        inner = dp * y * y
        dx = p * (inner - (inner * p).sum(-1, keepdim=True)) + ds[:, None] * p
        dy = 2 * dp * p * y
        if ctx.fault in ("overwrites what it saved", "keeps on ctx"):
            p.data.mul_(0.5)
        if ctx.fault == "overwrites its cotangent":
            dp.data.mul_(0.5)
        if ctx.fault == "gradient unwritten":
            return torch.empty_like(dx), dy, None
        if ctx.fault == "y by way of x" and not ctx.needs_input_grad[0]:
            dy = torch.zeros_like(dy)
        return dx, dy, None


def with_fault(fault: str, **fields: Any) -> Kernel:
    def call(x, y):
        return Pick.apply(x, y, fault)

    return kernel(call, **fields)


def counting():
    calls = []

    def drifting(x, y):
        p, s = right(x, y)
        calls.append(1)
        return p * (1 + 1.2e-7 * len(calls)), s

    return drifting


def cached():
    kept: dict[int, Any] = {}

    def by_address(x, y):
        p, s = right(x, y)
        first = kept.setdefault(x.data_ptr(), (p.detach(), x))  # x keeps its address from being given away
        return p - p.detach() + first[0], s

    return by_address


FAULTS = {
    "backward_twice_with_retain_graph_gives_the_same": "keeps on ctx",
    "every_subset_of_requires_grad_gives_the_same_gradients": "y by way of x",
    "saved_tensors_are_unmodified": "overwrites what it saved",
    "no_memory_is_left_unwritten": "tail unwritten",
    "writes_stay_inside_their_tensors": "writes behind",
    "inputs_and_cotangents_are_unmodified": "scales its input",
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_law_catches_its_fault_where_the_same_kernel_without_it_holds(name):
    assert judged(LAWS[name], with_fault("")).status is Status.HOLDS
    assert judged(LAWS[name], with_fault(FAULTS[name])).status is Status.VIOLATED


@pytest.mark.parametrize(
    "name,fault",
    [
        ("backward_twice_with_retain_graph_gives_the_same", "overwrites its cotangent"),
        ("no_memory_is_left_unwritten", "gradient unwritten"),
        ("writes_stay_inside_their_tensors", "writes before"),
        ("inputs_and_cotangents_are_unmodified", "overwrites its cotangent"),
    ],
)
def test_further_faults_are_caught(name, fault):
    assert judged(LAWS[name], with_fault(fault)).status is Status.VIOLATED


def test_a_write_into_the_gap_of_a_sliced_input_is_seen():
    law, case = LAWS["inputs_and_cotangents_are_unmodified"], CASE.with_draws(x=Draw("normal", "sliced"))
    assert judged(law, with_fault(""), case).status is Status.HOLDS
    found = judged(law, with_fault("writes around its input"), case)
    assert found.status is Status.VIOLATED
    assert "bytes around the elements of x" in next(f.message for f in found.findings if f.message)


def test_a_declared_mutation_is_allowed_and_leaves_the_sample_alone():
    law = LAWS["inputs_and_cotangents_are_unmodified"]
    assert judged(law, with_fault("scales its input", mutates=("x",))).status is Status.HOLDS
    one = evidence(with_fault("scales its input", mutates=("x",)))
    before = one.sample.inputs["x"].clone()
    one.vjp()
    assert torch.equal(one.sample.inputs["x"], before)


def test_a_second_backward_that_raises_is_a_violation():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x, y):
            ctx.inputs = (x.detach(), y.detach())
            return right(x, y)

        @staticmethod
        def backward(ctx: Any, dp, ds):
            if ctx.inputs is None:
                raise RuntimeError("the workspace of this graph was given back")
            (x, y), ctx.inputs = ctx.inputs, None
            with torch.enable_grad():
                return torch.func.vjp(right, x, y)[1]((dp, ds))

    law = LAWS["backward_twice_with_retain_graph_gives_the_same"]
    found = judged(law, kernel(Once.apply))
    assert found.status is Status.VIOLATED
    assert "the workspace of this graph was given back" in found.findings[0].message


def test_bits_that_drift_are_wrong_where_determinism_is_claimed_and_noise_elsewhere():
    law = LAWS["runs_are_bit_identical"]
    assert judged(law, RIGHT).status is Status.HOLDS
    assert judged(law, kernel(counting())).status is Status.VIOLATED
    assert judged(law, kernel(counting(), deterministic=False)).status is Status.HOLDS

    noise = itertools.cycle((0.0, 1e-4))  # drawn, two of them may be alike

    def noisy(x, y):
        p, s = right(x, y)
        return p * (1 + next(noise)), s

    assert judged(law, kernel(noisy, deterministic=False)).status is Status.VIOLATED


def test_an_answer_cached_by_address_is_seen():
    law = LAWS["first_call_equals_second"]
    assert judged(law, RIGHT).status is Status.HOLDS
    assert judged(law, kernel(cached())).status is Status.VIOLATED
    assert judged(law, kernel(cached(), deterministic=False)).status is Status.VIOLATED


def test_a_result_that_a_later_call_overwrites_is_seen():
    buffers: dict[Any, Any] = {}

    class Reusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x, y):
            ctx.save_for_backward(x, y)
            p, s = right(x, y)
            out = buffers.setdefault(p.shape, torch.zeros_like(p))
            return out.copy_(p).detach(), s

        @staticmethod
        def backward(ctx: Any, dp, ds):
            return torch.func.vjp(right, *ctx.saved_tensors)[1]((dp, ds))

    assert judged(LAWS["first_call_equals_second"], kernel(Reusing.apply)).status is Status.VIOLATED


def test_a_kernel_that_returns_its_input_is_right():
    """What it gave is its argument, so it changes with it."""

    @gradoracle.family(outputs=("o",))
    def same(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        return x

    law, case = LAWS["first_call_equals_second"], replace(CASE, family="same")
    for call in (lambda x: x, lambda x: x.clone()):
        assert judged(law, Kernel("same", "same", call, deterministic=True), case, same).status is Status.HOLDS


def test_a_wrong_block_configuration_is_found_among_right_ones():
    law = LAWS["every_block_configuration_agrees"]

    def tiled(x, y, blocks=16):
        p, s = right(x, y)
        return (p * 1.001 if blocks == 64 else p), s

    fields = {"blocks": {"small": 16, "medium": 32, "large": 64}}
    found = {}
    for seed in range(0, 15, 5):
        case = replace(CASE, seed=seed)
        result = judged(law, kernel(tiled, **fields), case)
        found[result.findings[0].tensor.split("blocks ")[1]] = result.status
    assert found == {"small": Status.HOLDS, "medium": Status.HOLDS, "large": Status.VIOLATED}


BAD, ACCEPTED = LAWS["bad_arguments_raise_value_error"], LAWS["declared_support_is_accepted"]


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
    assert (
        "does not name the argument (x) and the value given (int32) and what is expected"
        in messages(found)["x of dtype int32"]
    )
    assert "raised TypeError" in messages(judged(BAD, kernel(typed)))["x of dtype int32"]
    assert judged(BAD, kernel(typed, outside=True)).status is Status.HOLDS

    def indexed(x, y):
        return right(x, y) if x.size(1) else None

    assert judged(BAD, kernel(indexed)).status is Status.VIOLATED
    assert judged(BAD, kernel(indexed, outside=True)).status is Status.HOLDS


def test_an_outside_kernel_may_take_what_the_definition_takes_and_no_more():
    outside = replace(WEIGH, outside=True)
    assert judged(BAD, outside, replace(CASE, family="weigh"), weigh).status is Status.HOLDS

    def cut(x, w):
        return torch.sin(x) * w[: x.shape[-1]]

    found = judged(BAD, replace(outside, call=cut), replace(CASE, family="weigh"), weigh)
    assert found.status is Status.NOT_CHECKED
    assert found.reason == "it takes without an error what the definition refuses: w with N larger by one"

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


def test_laws_that_run_again_keep_to_small_cases():
    long = CASE.with_dims(N=131_072)
    spared = {law.name for law in UNIVERSAL if law.applies(long, RIGHT) is None}
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


def test_memory_laws_look_at_every_derivative_that_was_run():
    one = evidence(RIGHT)
    one.hvp()
    found = judge_law(LAWS["writes_stay_inside_their_tensors"], one)
    assert [f.tensor for f in found.findings] == ["memory of forward", "memory of vjp", "memory of hvp"]
