"""Kernels that have a forward alone are green without more ado, and every property of outputs is checked on them."""

from __future__ import annotations

import pytest
from places import TESTS

from gradoracle.check.run import check
from gradoracle.model.verdict import Report, Status
from gradoracle.project.request import Request

OF_OUTPUTS = {
    "any_layout_of_inputs_is_right_or_refused",
    "batch_members_are_independent",
    "forward_matches_the_oracle",
    "runs_are_bit_identical",
    "tail_and_padding_invariance",
}


def checked(name: str, examples: int = 24) -> Report:
    target = f"{TESTS / 'check' / 'forward_only.py'}:{name}"
    return check(Request(target, None, device="cpu", dtypes=("float32",), examples=examples, workers=0))


def names(report: Report, *statuses: Status) -> set[str]:
    return {v.property_name for v in report.verdicts if v.status in statuses}


@pytest.mark.parametrize(
    "name", ["detached", "without_gradients", "with_a_backward_that_raises", "with_a_backward_of_nothing"]
)
def test_a_right_one_is_green_and_its_outputs_are_checked(name: str) -> None:
    report = checked(name)
    assert report.exit_code == 0 and not report.faults
    assert names(report, Status.HOLDS) >= OF_OUTPUTS
    assert not names(report, Status.VIOLATED, Status.CRASHED, Status.REFUSED, Status.ERROR)
    assert "any_layout_of_cotangents_is_right_or_refused" not in names(report, Status.HOLDS)


@pytest.mark.parametrize(
    ("name", "property_name"),
    [
        ("ignores_strides", "any_layout_of_inputs_is_right_or_refused"),
        ("differs_from_call_to_call", "runs_are_bit_identical"),
        ("scales_by_the_whole_batch", "batch_members_are_independent"),
    ],
)
def test_a_fault_of_the_outputs_is_violated(name: str, property_name: str) -> None:
    report = checked(name)
    assert report.exit_code == 1 and property_name in names(report, Status.VIOLATED, Status.CRASHED)
