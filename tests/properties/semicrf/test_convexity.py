"""Each law of the semi-CRF's convexity catches a wrong kernel, and the right one holds on the same case."""

from __future__ import annotations

import pytest
from gradoracle.properties.semicrf.laws.convexity import CONVEXITY, _line

from gradoracle.model.verdict import Status
from tests.properties.semicrf.segmentations import (
    PLAIN,
    SHIPPED,
    SIZES,
    assert_caught,
    assert_holds,
    evidence,
    judge,
    kernel,
)

BY_DURATION = f"{SIZES} transition_by_duration~normal proj_start~normal proj_end~normal seed=13"
LAWS = {law.name: law for law in CONVEXITY}

# law, fault, case
CAUGHT = [
    ("the_hessian_is_not_negative", "Hessian with the wrong sign", BY_DURATION),
    ("the_hessian_is_not_negative", "Hessian with the wrong sign", PLAIN),  # along cum_scores
    ("log_z_in_the_middle_is_at_most_the_mean", "negated", PLAIN),
    ("log_z_lies_above_its_tangents", "dcum one quarter large", BY_DURATION),
    ("log_z_lies_above_its_tangents", "negated", PLAIN),
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


LINE = ("log_z_in_the_middle_is_at_most_the_mean", "log_z_lies_above_its_tangents")
ALL = ("cum_scores", "transition", "duration_bias")


def moved(recipe: str, words: str = "seed=11") -> str:
    return f"{SIZES} transition~normal {' '.join(f't{name}~{recipe}' for name in ALL)} {words}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("law", LINE)
@pytest.mark.parametrize("recipe", ["tiny", "subnormal", "normal:1e-3"])
def test_small_tangents_move_the_points_all_the_same(law: str, recipe: str, dtype: str) -> None:
    line = moved(recipe).replace("float32", dtype)
    assert all(bool((move != 0).any()) for _, move in _line(evidence(line, kernel()).sample, dtype).values())
    assert_caught(LAWS[law], line, kernel(), kernel("negated"))


@pytest.mark.parametrize("law", LINE)
@pytest.mark.parametrize(
    ("recipe", "words", "reason"),
    [
        ("zeros", "seed=11", "all tangents are 0"),
        ("normal", "lengths~lowest seed=11", "every length is 0"),
    ],
)
def test_points_that_are_one_are_not_checked(law: str, recipe: str, words: str, reason: str) -> None:
    found = judge(LAWS[law], moved(recipe, words), kernel())
    assert found.status is Status.NOT_CHECKED and reason in found.findings[0].message


def test_every_law_has_a_fault_that_it_catches() -> None:
    assert {law for law, _, _ in CAUGHT} == set(LAWS)
