"""Each law of the semi-CRF's special cases catches a wrong kernel, and the right one holds on the same case."""

from __future__ import annotations

import pytest
from gradoracle.properties.semicrf.laws.special_cases import SPECIAL_CASES, nan_read

from gradoracle.cases.sample import build
from gradoracle.model.case import parse
from tests.properties.semicrf.segmentations import (
    FAMILY,
    PLAIN,
    PROJECTED,
    SHIPPED,
    SIZES,
    assert_caught,
    assert_holds,
    kernel,
)

BY_DURATION = f"{SIZES} transition_by_duration~normal proj_start~normal proj_end~normal seed=13"
FORBIDDEN = f"{SIZES} transition~normal lengths~highest seed=14"
NAN = "nan_in_gives_nan_out_for_its_sequence_alone"


def reads(name: str, words: str) -> str:
    """The first case line of some words that has NaN in an input."""
    for seed in range(100):
        line = f"{words} seed={seed}"
        _, _, case = parse(line)
        if nan_read(case, build(case, FAMILY.signature, domains=FAMILY.domains)) == name:
            return line
    raise AssertionError(f"no seed has NaN in {name}")


BOTH = f"{SIZES} transition~normal proj_start~normal proj_end~normal"
READ = {name: reads(name, BOTH) for name in ("cum_scores", "proj_start", "proj_end", "transition", "duration_bias")}
BY_TABLE = reads("transition_by_duration", f"{SIZES} transition_by_duration~normal")
LAWS = {law.name: law for law in SPECIAL_CASES}

# law, fault, case
CAUGHT = [
    ("log_z_and_gradients_are_those_of_the_enumeration", "last duration dropped", BY_DURATION),
    ("log_z_and_gradients_are_those_of_the_enumeration", "dcum one percent large", PLAIN),
    ("one_position_is_a_sum_over_pairs_of_labels", "label before the first segment is the first label", PLAIN),
    ("one_position_is_a_sum_over_pairs_of_labels", "transposed transition", BY_DURATION),
    ("durations_of_one_are_a_linear_chain", "transposed transition", BY_DURATION),
    ("durations_of_one_are_a_linear_chain", "starts one place late", PROJECTED),
    ("durations_beyond_the_sequence_do_nothing", "segments begin before 0", PLAIN),
    ("durations_beyond_the_sequence_do_nothing", "segments begin before 0", BY_DURATION),
    ("a_sequence_of_length_0_gives_log_c", "one step at least", PLAIN),
    ("a_sequence_of_length_0_gives_log_c", "dcum past the length", BY_DURATION),
    ("where_every_path_is_forbidden_log_z_is_minus_infinity", "NaN where nothing is left", PLAIN),
    ("where_every_path_is_forbidden_log_z_is_minus_infinity", "-30 for -inf", FORBIDDEN),
    ("what_is_forbidden_has_no_gradient", "-30 for -inf", PLAIN),
    ("what_is_forbidden_has_no_gradient", "what is forbidden has a gradient", BY_DURATION),
    ("forbidding_the_longest_duration_is_not_having_it", "last duration dropped", PROJECTED),
    ("a_forbidden_label_is_none", "padded label", BY_DURATION),
    *((NAN, f"NaN dropped from {name}", line) for name, line in READ.items()),
    (NAN, "NaN dropped from transition", BY_TABLE),
    (NAN, "sequences share a peak", READ["cum_scores"]),
    (NAN, "sequences share a peak", READ["proj_end"]),
]
LINES = [*{law: line for law, _, line in CAUGHT if law != NAN}.items(), *((NAN, x) for x in (*READ.values(), BY_TABLE))]


@pytest.mark.parametrize(
    ("law", "fault", "line"), CAUGHT, ids=[f"{law}-{fault}-{line[-7:]}" for law, fault, line in CAUGHT]
)
def test_the_wrong_kernel_is_caught_and_the_right_one_holds(law: str, fault: str, line: str) -> None:
    assert_caught(LAWS[law], line, kernel(), kernel(fault))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("law", "line"), LINES)
def test_the_shipped_kernel_holds(law: str, line: str, dtype: str) -> None:
    assert_holds(LAWS[law], line, SHIPPED, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize(("law", "line"), LINES)
def test_the_correct_kernel_holds_in_every_dtype(law: str, line: str, dtype: str) -> None:
    assert_holds(LAWS[law], line, kernel(), dtype)


def test_every_law_has_a_fault_that_it_catches() -> None:
    assert {law for law, _, _ in CAUGHT} == set(LAWS)
