"""The points that properties of the semi-CRF's convexity compare: apart for small tangents too, else not checked."""

from __future__ import annotations

import pytest
from gradoracle.properties.semicrf.catalogue.convexity import _line

from gradoracle.model.verdict import Status
from tests.properties.semicrf.segmentations import SIZES, evidence, judge, kernel

LINE = ("log_z_in_the_middle_is_at_most_the_mean", "log_z_lies_above_its_tangents")
ALL = ("cum_scores", "transition", "duration_bias")


def moved(recipe: str, words: str = "seed=11") -> str:
    return f"{SIZES} transition~normal {' '.join(f't{name}~{recipe}' for name in ALL)} {words}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("property_name", LINE)
@pytest.mark.parametrize("recipe", ["tiny", "subnormal", "normal:1e-3"])
def test_small_tangents_move_the_points_all_the_same(property_name: str, recipe: str, dtype: str) -> None:
    line = moved(recipe).replace("float32", dtype)
    assert all(bool((move != 0).any()) for _, move in _line(evidence(line, kernel()).sample, dtype).values())
    assert judge(property_name, line, kernel()).status is Status.HOLDS
    assert judge(property_name, line, kernel("negated")).status is Status.VIOLATED


@pytest.mark.parametrize("property_name", LINE)
@pytest.mark.parametrize(
    ("recipe", "words", "reason"),
    [
        ("zeros", "seed=11", "all tangents are 0"),
        ("normal", "lengths~lowest seed=11", "every length is 0"),
    ],
)
def test_points_that_are_one_are_not_checked(property_name: str, recipe: str, words: str, reason: str) -> None:
    found = judge(property_name, moved(recipe, words), kernel())
    assert found.status is Status.NOT_CHECKED and reason in found.findings[0].message
