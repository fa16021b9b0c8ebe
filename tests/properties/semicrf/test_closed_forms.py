"""Closed forms of the semi-CRF are within their radius of sums in 50 digits, and a wrong one is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gradoracle.properties.semicrf.closed_forms import of_chains, of_one_position, of_paths, rounded
from gradoracle.properties.semicrf.problems import Known

from gradoracle.cases.sample import Sample
from tests.properties.semicrf.samples import WORDS, sample

SIZES = {"T = 1": "B=3 T=1 C=3 K=2", "K = 1": "B=2 T=5 C=3 K=1"}
CLOSED = {"T = 1": of_one_position, "K = 1": of_chains}
LARGE = "transition~normal:100 cum_scores~normal:1e5 duration_bias~normal:30 proj_end~normal:30"


def within(found: Known, exact: Known) -> bool:
    apart = torch.where(found.value == exact.value, 0.0, (found.value - exact.value).abs())
    return bool((apart <= found.radius + exact.radius).all())


def far(found: Known) -> Known:
    """Off by twice the radius more, and by 1e-300 where there is none."""
    return found._replace(value=found.value + 3 * found.radius + 1e-300)


@pytest.mark.parametrize("words", [*WORDS, LARGE])
@pytest.mark.parametrize("form", CLOSED)
def test_it_is_within_its_radius_and_what_is_off_by_more_is_not(form: str, words: str) -> None:
    own: Sample = sample(words, SIZES[form])
    found, exact = CLOSED[form](own), of_paths(own)
    assert found.keys() == exact.keys()
    for name, value in found.items():
        assert within(value, exact[name]), name
        if value.value.isfinite().any():
            assert not within(far(value), exact[name]), name


@pytest.mark.parametrize("form", CLOSED)
def test_the_radius_is_far_below_what_float32_holds_and_0_where_nothing_is(form: str) -> None:
    own = sample("projections", SIZES[form])
    for name, value in CLOSED[form](own).items():
        assert bool((value.radius <= 1e-12 * value.value.abs().max()).all()), name
    empty = replace(own, inputs={**own.inputs, "lengths": torch.zeros_like(own.inputs["lengths"])})
    for name, value in CLOSED[form](empty).items():
        assert name == "log_z" or ((value.value == 0).all() and (value.radius == 0).all())


def test_the_radius_of_a_rounded_number_is_two_roundings_and_no_less_than_a_subnormal() -> None:
    radius = rounded(torch.tensor([0.0, 4.94e-324, 1.0, -torch.inf], dtype=torch.float64)).radius
    assert radius.tolist() == [0.0, 2.0**-1074, 2.0**-52, 0.0]
