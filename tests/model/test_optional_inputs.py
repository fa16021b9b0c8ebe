"""A kernel that takes fewer optional inputs than its family: they are neither drawn, nor expected, nor passed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from jaxtyping import Float, Int
from torch import Tensor

from gradoracle.cases.coverage import goals_of, wanted_goals
from gradoracle.cases.stream import stream
from gradoracle.check.usable_case import require_case
from gradoracle.model.case import Case, Draw
from gradoracle.model.domains import IndexDomain
from gradoracle.model.errors import UsageError
from gradoracle.model.family import family
from gradoracle.model.kernel import Kernel, kernel


@family(
    domains={"rows": IndexDomain(3), "columns": IndexDomain(3)},
    joint={"large": {"x": "normal:10", "bias": "normal:100"}, "plain": {"x": "positive"}},
    together=[("rows", "columns")],
)
def shifted(
    x: Float[Tensor, "B N"],
    *,
    bias: Float[Tensor, "N"] | None = None,
    rows: Int[Tensor, "B"] | None = None,
    columns: Int[Tensor, "N"] | None = None,
    scale: float = 2.0,
) -> Float[Tensor, "B N"]:
    """scale x + bias."""
    return scale * x if bias is None else scale * x + bias


def plain(x: Tensor) -> Tensor:
    return 2.0 * x


def biased(x: Tensor, *, bias: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
    return 2.0 * x if bias is None else 2.0 * x + bias


def anything(x: Tensor, **options: Any) -> Tensor:
    return shifted(x, **options)


def adopted(function: Any) -> Kernel:
    found: Kernel = kernel(shifted)(function)
    return found


def drawn(kernel: Kernel) -> set[str]:
    return {name for case in stream(shifted, kernel, dtypes=("float32",), examples=150) for name in case.draws}


def test_what_a_signature_does_not_name_is_not_drawn():
    names = {"bias", "rows", "columns"}
    assert drawn(adopted(plain)) & names == set()
    assert drawn(adopted(biased)) & names == {"bias"}, "rows come with columns, which it does not take"
    assert drawn(adopted(anything)) & names == names


def test_a_signature_that_cannot_be_read_is_given_no_optional_input():
    subject = adopted(min)
    assert subject.notes and drawn(subject) & {"bias", "rows", "columns"} == set()


@pytest.mark.parametrize(("function", "there"), [(plain, False), (biased, True)])
def test_coverage_goals_of_what_is_not_taken_are_not_expected(function, there):
    subject = adopted(function)
    expected = wanted_goals(shifted, subject, ("float32",), 150)
    assert {"bias given" in expected, "bias absent" in expected, "joint large" in expected} == {there}
    assert "joint plain" in expected and "rows given" not in expected and "recipe lowest" not in expected
    seen = {name for case in stream(shifted, subject, dtypes=("float32",), examples=150) for name in
            goals_of(shifted, subject, case)}  # fmt: skip
    assert set(expected) <= seen
    assert ("bias absent" in seen) is there


def test_a_case_that_draws_what_the_kernel_does_not_take_is_a_usage_error():
    case = Case("shifted", {"B": 1, "N": 2}, "float32", {}, {"bias": Draw()}, "", 0)
    require_case(case, shifted, adopted(biased))
    with pytest.raises(UsageError, match="the case draws bias, which plain does not take; expected none"):
        require_case(case, shifted, adopted(plain))


def test_a_kernel_that_declares_nothing_takes_every_optional_input():
    declared = replace(adopted(anything), options={})
    assert drawn(declared) >= {"bias", "rows", "columns"}
