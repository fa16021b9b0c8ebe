"""The property of large offsets: on a CPU, where memory that nothing touches costs nothing, and on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gradoracle.properties.universal import offsets
from gradoracle.properties.universal.offsets import NEARBY, offsets_past_2_31_give_the_same

from gradoracle.cases.sample import build
from gradoracle.check.diagnosis.diagnosis import diagnose, of_results
from gradoracle.check.judge_property import judge_property
from gradoracle.model import tensor_bits
from gradoracle.model.finding import Outcome
from gradoracle.model.verdict import Status
from tests.properties.toys import CASE, RIGHT, evidence, judged, kernel, pick, right
from tests.properties.universal.wrong_members import wrapping

PROPERTY = offsets_past_2_31_give_the_same
needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_the_correct_kernel_holds_with_every_argument_far_and_along_every_dim():
    for seed in range(0, 35, 7):
        assert judged(PROPERTY, RIGHT, replace(CASE, seed=seed)).status is Status.HOLDS


def test_the_longest_dim_has_two_turns():
    sample = build(replace(CASE, dims={"B": 3, "N": 10}), pick.signature)
    axes = [next(far.axis for far in offsets._fars(sample, turn) if far.name == "x") for turn in range(3)]
    assert sorted(axes) == [0, 1, 1]


def test_the_stride_fits_32_bits_and_twice_the_stride_does_not_where_there_is_room(monkeypatch):
    tensor = torch.arange(24.0).view(2, 3, 4)
    for axis in (1, 2):
        laid = offsets._laid(tensor, axis, True, False)
        assert torch.equal(laid, tensor) and laid.stride(axis) < 2**31 <= laid.stride(axis) * 2
    monkeypatch.setattr(offsets, "_ADDRESSES", 1 << 33)
    laid = offsets._laid(tensor, 2, True, False)
    assert torch.equal(laid, tensor) and laid.stride(2) * 2 < 2**31 <= laid.stride(2) * 3
    assert offsets._laid(tensor, 0, True, False).stride(0) > 2**31  # of two members the stride itself needs more


def test_without_a_dim_of_several_members_and_without_addresses_it_says_so(monkeypatch):
    alone = replace(CASE, dims={"B": 1, "N": 1})
    assert "no tensor has a dim" in judged(PROPERTY, RIGHT, alone).reason

    def none(*args, **kwargs):
        raise OSError

    monkeypatch.setattr(tensor_bits.mmap, "mmap", none)
    found = judged(PROPERTY, RIGHT)
    assert found.status is Status.NOT_CHECKED and found.reason.startswith("needs ")


def test_a_failure_names_the_tensors_that_are_enough():
    found = judged(PROPERTY, kernel(wrapping))
    messages = [finding.message for finding in found.findings if finding.outcome is Outcome.VIOLATED]
    assert messages and all("input x along dim" in each and "alone past 2^31" in each for each in messages)


class IgnoresStrides(torch.autograd.Function):
    """Reads x as if it were contiguous."""

    @staticmethod
    def forward(ctx, x, y):
        dense = torch.empty(0).set_(x.untyped_storage(), x.storage_offset(), x.shape).clone()
        ctx.save_for_backward(dense, y)
        return right(dense, y)

    @staticmethod
    def backward(ctx, *cotangents):
        given = [each.detach().clone().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            return torch.autograd.grad(right(*given), given, cotangents)


def test_a_stride_that_is_ignored_is_no_offset_that_wraps():
    found = judged(PROPERTY, kernel(IgnoresStrides.apply))
    wrong = [finding for finding in found.findings if finding.outcome is Outcome.VIOLATED]
    assert wrong and all(each.message.endswith(NEARBY) and each.cause == "layout" for each in wrong)
    for kernel_, cause in ((IgnoresStrides.apply, ""), (wrapping, "offset")):
        results = [judged(PROPERTY, kernel(kernel_))]
        assert diagnose(of_results(results, {PROPERTY.name: PROPERTY})).cause == cause
    assert offsets._laid(torch.zeros(3, 4), 0, False, False).stride() == (32, 1)


@needs_a_gpu
def test_on_a_gpu_one_tensor_is_far():
    def on_gpu(subject, case):
        return judge_property(PROPERTY, evidence(subject, case, device="cuda")).status

    cases = [replace(CASE, seed=seed) for seed in (0, 7)]  # the first input, then the second
    assert [on_gpu(RIGHT, case) for case in cases] == [Status.HOLDS] * 2
    assert [on_gpu(kernel(wrapping), case) for case in cases] == [Status.VIOLATED] * 2
