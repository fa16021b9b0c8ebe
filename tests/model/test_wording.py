"""Wording: numbers that look alike are told apart."""

from __future__ import annotations

import math

import pytest

from gradoracle.model.wording import factor, got_and_true


@pytest.mark.parametrize(
    ("got", "true", "said"),
    [
        (0.5, 0.25, "got 0.5, true 0.25"),
        (20.0, 20.0 - 2.06e-9, "got 20, true 20, difference +2.06e-09"),
        (-1e-300, -1.0000000001e-300, "got -1e-300, true -1e-300, difference +1e-310"),
        (1.5, 1.5, "got 1.5, true 1.5, difference less than float64 shows"),  # of a truth with more digits
        (math.nan, 1.0, "got nan, true 1"),
        (math.inf, math.inf, "got inf, true inf"),
        (-0.0, 0.0, "got -0, true 0"),
    ],
)
def test_the_difference_is_printed_where_nine_digits_do_not_show_it(got: float, true: float, said: str) -> None:
    assert got_and_true(got, true) == said


@pytest.mark.parametrize(
    ("value", "said"), [(2.0, "2"), (1.0, "1"), (1.00098, "1.00098"), (1 + 2e-7, "1 + 2e-07"), (1 - 3e-8, "1 - 3e-08")]
)
def test_a_factor_near_1_is_not_1(value: float, said: str) -> None:
    assert factor(value) == said
