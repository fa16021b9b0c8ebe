"""How a fitted constant is shown."""

from __future__ import annotations

import math

import pytest

from gradoracle.model.wrong_constant import WrongConstant


def constant(fitted: float, uncertainty: float) -> WrongConstant:
    return WrongConstant(__file__, 1, "test", "", 0.0, fitted, uncertainty)


@pytest.mark.parametrize(
    ("fitted", "uncertainty", "name", "shortest", "digits"),
    [
        (0.9999999999, 1e-9, "", "1", 1),
        (0.9999999999, 1e-12, "", "0.9999999999", 10),
        (0.0447149967, 1e-8, "", "0.044715", 5),
        (1.0000002e-6, 1e-12, "", "1e-06", 1),
        (math.log2(math.e) + 1e-9, 1e-8, "log2 e", "1.44269504", 0),
        (-math.sqrt(2 / math.pi), 1e-8, "sqrt (2 / pi)", "-0.79788456", 0),
        (1 / 3, 0.0, "", repr(1 / 3), 16),
    ],
)
def test_a_fitted_value_has_its_name_or_the_digits_that_are_known(
    fitted: float, uncertainty: float, name: str, shortest: str, digits: int
) -> None:
    found = constant(fitted, uncertainty)
    assert (found.name, found.shortest, found.digits) == (name, shortest, digits)


def test_the_source_is_the_line() -> None:
    assert constant(1.0, 0.0).source == '"""How a fitted constant is shown."""'
