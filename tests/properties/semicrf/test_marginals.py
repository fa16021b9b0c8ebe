"""Each law of the semi-CRF's marginals catches a wrong kernel, and the right one holds on the same case."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gradoracle.properties.semicrf.laws.marginals import MARGINALS
from sweeps import slow

from gradoracle.model.case import parse
from tests.properties.semicrf.segment_probabilities import kernel
from tests.properties.semicrf.segmentations import (
    PLAIN,
    PROJECTED,
    SIZES,
    assert_caught,
    assert_holds,
    assert_not_violated_without_paths,
)

BY_DURATION = f"{SIZES} transition_by_duration~normal proj_start~normal seed=13"
LAWS = {law.name: law for law in MARGINALS}

COVERED = "every_position_is_covered_once"
COUNTS = "every_gradient_counts_the_same_segments"
LENGTHS = "expected_lengths_add_up_to_the_length"
LABELS = "every_label_is_as_long_by_duration_as_by_place"
ENDS = "dcum_is_what_ends_less_what_begins"
COVER = "marginals_cover_every_position_once"
AGREE = "marginals_are_the_gradients"

# law, fault, case
CAUGHT = [
    (COVERED, "cotangent applied twice", PLAIN),
    (COVERED, "dcum of one label one percent large at one place", PROJECTED),
    (COVERED, "last end left out of dcum", BY_DURATION),
    (COUNTS, "dtransition transposed", PLAIN),
    (COUNTS, "dtransition of another duration", BY_DURATION),
    (COUNTS, "first place left out of dproj_start", PROJECTED),
    (COUNTS, "dproj_end one percent large", PROJECTED),
    (LENGTHS, "dduration off by one", PLAIN),
    (LENGTHS, "cotangent applied twice", BY_DURATION),
    (LABELS, "labels of dduration crossed", PLAIN),
    (LABELS, "dduration off by one", PROJECTED),
    (ENDS, "dproj_start one place late", PLAIN),
    (ENDS, "dproj_end one place late", BY_DURATION),
    (ENDS, "labels of dcum crossed", PROJECTED),
    (COVER, "position marginals one percent large", PLAIN),
    (COVER, "position marginals past the length", PLAIN),
    (COVER, "segments of another duration", BY_DURATION),
    (AGREE, "segments of another place", PROJECTED),
    (AGREE, "labels of segments crossed", PLAIN),
    (AGREE, "boundaries one place late", BY_DURATION),
]


@pytest.mark.parametrize(("law", "fault", "line"), CAUGHT, ids=[f"{law}-{fault}" for law, fault, _ in CAUGHT])
def test_the_wrong_kernel_is_caught_and_the_right_one_holds(law: str, fault: str, line: str) -> None:
    assert_caught(LAWS[law], line, kernel(), kernel(fault))


@pytest.mark.parametrize("positions", [10_001, slow(100_001)])
def test_one_place_of_many_that_is_one_percent_off_is_caught(positions: int) -> None:
    line = f"case:1 semicrf cpu float32 B=1 T={positions} C=2 K=3 transition~normal lengths~highest seed=2"
    assert_caught(LAWS[COVERED], line, kernel(), kernel("dcum of one label one percent large at one place"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("law", "line"), {law: line for law, _, line in CAUGHT}.items())
def test_the_correct_kernel_holds_in_16_bit(law: str, line: str, dtype: str) -> None:
    assert_holds(LAWS[law], line, kernel(), dtype)


@pytest.mark.parametrize("law", LAWS)
def test_it_holds_where_there_is_no_path_or_no_position(law: str) -> None:
    assert_not_violated_without_paths(LAWS[law], kernel())


@pytest.mark.parametrize("law", [COVER, AGREE])
def test_a_kernel_without_the_entry_point_is_not_judged_by_it(law: str) -> None:
    _, _, case = parse(PLAIN)
    plain = replace(kernel(), extras={})
    assert LAWS[law].applies(case, plain) == "the kernel has no entry point 'marginals'"
    assert LAWS[law].applies(case, kernel()) is None


def test_a_kernel_without_projections_is_not_given_any() -> None:
    _, _, case = parse(PLAIN)
    barred = replace(kernel(), options={"proj_end": ()})
    assert LAWS[ENDS].applies(case, barred) == "the kernel takes no proj_end"


def test_every_law_has_a_fault_that_it_catches() -> None:
    assert {law for law, _, _ in CAUGHT} == set(LAWS)
