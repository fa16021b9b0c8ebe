"""Which fitted constants are recognised, and how they are named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gradoracle.model.explanation import WrongConstant

NUMBERS = {"1": 1.0, "log2 e": math.log2(math.e), "D": 8.0, "1 / D": 0.125, "M": 8.0, "0.044715": 0.044715}


def constant(fitted: float, uncertainty: float, value: float = 0.0) -> WrongConstant:
    return WrongConstant(__file__, 1, "test", "", value, fitted, uncertainty)


@pytest.mark.parametrize(
    ("fitted", "uncertainty", "shown", "name"),
    [
        (0.9999999999, 1e-9, 1.0, ""),
        (0.9999999999, 1e-12, None, ""),
        (0.0447149967, 1e-8, 0.044715, ""),
        (math.log2(math.e) + 1e-9, 1e-8, math.log2(math.e), "log2 e"),
        (-0.125, 1e-9, -0.125, "1 / D"),
        (8.0, 1e-9, 8.0, ""),  # D or M
        (1.2, 0.25, None, ""),  # 1 or log2 e
        (0.101266, 1e-7, None, ""),
        (-50.3, 0.01, None, ""),
    ],
)
def test_a_fitted_value_is_one_known_number_or_not_shown(
    fitted: float, uncertainty: float, shown: float | None, name: str
) -> None:
    found = constant(fitted, uncertainty).recognised(NUMBERS)
    assert (shown, name) == (None, "") if found is None else (found.fitted, found.name) == (shown, name)


def test_a_value_that_would_do_as_it_is_is_not_wrong() -> None:
    assert constant(1.0, 1e-6, value=1.0000001).recognised(NUMBERS) is None


def test_the_source_is_the_line() -> None:
    assert constant(1.0, 0.0).source == Path(__file__).read_text().splitlines()[0]
