"""Each law of the semi-CRF's alpha, beta and boundaries catches a wrong kernel; the right one holds on that case."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gradoracle.properties.semicrf.laws.boundaries import BOUNDARIES
from sweeps import slow

from gradoracle.model.case import parse
from gradoracle.model.verdict import Status
from tests.properties.semicrf.segment_probabilities import kernel
from tests.properties.semicrf.segmentations import (
    PLAIN,
    PROJECTED,
    SIZES,
    assert_caught,
    assert_holds,
    assert_not_violated_without_paths,
    judge,
)

BY_DURATION = f"{SIZES} transition_by_duration~normal proj_start~normal seed=13"
LAWS = {law.name: law for law in BOUNDARIES}

MEET = "alpha_and_beta_meet_at_log_z_at_both_ends"
GIVE = "alpha_and_beta_give_the_boundaries"
CHAIN = "with_one_duration_every_place_is_a_boundary"

# law, fault, case
CAUGHT = [
    (MEET, "norm of another checkpoint", PLAIN),
    (MEET, "beta from T", PROJECTED),
    (MEET, "virtual label left out", BY_DURATION),
    (GIVE, "alpha one place late", PLAIN),
    (GIVE, "norm of another checkpoint", BY_DURATION),
    (GIVE, "beta past the length", PROJECTED),
    (GIVE, "boundaries one place late", PLAIN),
    (CHAIN, "ring of two positions", PLAIN),
    (CHAIN, "alpha one place late", BY_DURATION),
    (CHAIN, "first place left out of dproj_start", PROJECTED),
]


@pytest.mark.parametrize(("law", "fault", "line"), CAUGHT, ids=[f"{law}-{fault}" for law, fault, _ in CAUGHT])
def test_the_wrong_kernel_is_caught_and_the_right_one_holds(law: str, fault: str, line: str) -> None:
    assert_caught(LAWS[law], line, kernel(), kernel(fault))


@pytest.mark.parametrize("words", ["T=10001 duration_bias~normal:20", slow("T=100001")])
def test_norms_in_float32_are_caught_where_log_z_is_large(words: str) -> None:
    """Where it is about 1.6e5, norms in float32 are off by up to 8e-3."""
    line = f"case:1 semicrf cpu float32 B=1 C=2 K=3 transition~normal lengths~highest {words} seed=2"
    assert_caught(LAWS[MEET], line, kernel(), kernel("norms in float32"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("law", "line"), {law: line for law, _, line in CAUGHT}.items())
def test_the_correct_kernel_holds_in_16_bit(law: str, line: str, dtype: str) -> None:
    assert_holds(LAWS[law], line, kernel(), dtype)


@pytest.mark.parametrize("law", LAWS)
def test_it_holds_where_there_is_no_path_or_no_position(law: str) -> None:
    assert_not_violated_without_paths(LAWS[law], kernel())


def test_without_the_entry_points_gradients_alone_are_judged() -> None:
    _, _, case = parse(PLAIN)
    plain = replace(kernel(), extras={})
    for law in (MEET, GIVE):
        assert LAWS[law].applies(case, plain) == "the kernel has no entry point 'forward_backward'"
    found = judge(LAWS[CHAIN], PLAIN, plain)
    assert found.status is Status.HOLDS and len(found.findings) == 2
    wrong = judge(LAWS[CHAIN], PLAIN, replace(kernel("ring of two positions"), extras={}))
    assert wrong.status is Status.VIOLATED


def test_every_law_has_a_fault_that_it_catches() -> None:
    assert {law for law, _, _ in CAUGHT} == set(LAWS)
