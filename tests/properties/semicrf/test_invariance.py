"""Each law of what must not matter to the semi-CRF catches a kernel to which it does, and the right one holds."""

from __future__ import annotations

import pytest
from gradoracle.properties.semicrf.laws.invariance import INVARIANCES

from tests.properties.semicrf.segmentations import PLAIN, PROJECTED, SHIPPED, SIZES, assert_caught, assert_holds, kernel

BY_DURATION = f"{SIZES} transition_by_duration~normal proj_start~normal proj_end~normal seed=13"
OTHER = f"{SIZES} transition~normal seed=15"  # of which the last sequence is taken
LAWS = {law.name: law for law in INVARIANCES}

# law, fault, case
CAUGHT = [
    ("a_sequence_alone_gives_what_it_gives_in_a_batch", "length of the first sequence", OTHER),
    ("a_sequence_alone_gives_what_it_gives_in_a_batch", "dtransition averaged over the batch", BY_DURATION),
    ("each_cotangent_scales_its_own_sequence_once", "cotangent applied twice", PLAIN),
    ("each_cotangent_scales_its_own_sequence_once", "the mean of the cotangents", BY_DURATION),
    ("a_repeated_sequence_counts_twice", "dtransition averaged over the batch", BY_DURATION),
    ("a_shorter_sequence_is_the_sequence_cut", "T for the length", PLAIN),
    ("a_shorter_sequence_is_the_sequence_cut", "dcum past the length", BY_DURATION),
    ("what_lies_past_the_length_does_not_matter", "masked by multiplication", PROJECTED),
    ("lengths_of_32_and_of_64_bits_give_the_same", "int32 lengths out of order", PLAIN),
    ("parallel_equals_sequential", "parallel transposed", BY_DURATION),
    ("how_often_a_state_is_kept_does_not_matter", "a state twice", PROJECTED),
    ("time_may_be_reversed", "starts one place late", PROJECTED),
    ("time_may_be_reversed", "T for the length", PLAIN),
]


@pytest.mark.parametrize(("law", "fault", "line"), CAUGHT, ids=[f"{law}-{fault}" for law, fault, _ in CAUGHT])
def test_the_wrong_kernel_is_caught_and_the_right_one_holds(law: str, fault: str, line: str) -> None:
    assert_caught(LAWS[law], line, kernel(), kernel(fault))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("law", "line"), {law: line for law, _, line in CAUGHT}.items())
def test_the_shipped_kernel_holds(law: str, line: str, dtype: str) -> None:
    assert_holds(LAWS[law], line, SHIPPED, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize(("law", "line"), {law: line for law, _, line in CAUGHT}.items())
def test_the_correct_kernel_holds_in_every_dtype(law: str, line: str, dtype: str) -> None:
    assert_holds(LAWS[law], line, kernel(), dtype)


def test_every_law_has_a_fault_that_it_catches() -> None:
    assert {law for law, _, _ in CAUGHT} == set(LAWS)
