"""Properties of alpha, beta and marginals on a semi-CRF kernel without the entry points, or without an input."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradoracle.model.case import parse
from gradoracle.model.verdict import Status
from tests.properties.judging import property_of
from tests.properties.semicrf.segment_probabilities import kernel
from tests.properties.semicrf.segmentations import FAMILY, PLAIN, judge
from tests.properties.semicrf.wrong import AGREE, CHAIN, COVER, ENDS, GIVE, MEET

CASE = parse(PLAIN)[2]


@pytest.mark.parametrize(
    ("property_name", "entry"),
    [(MEET, "forward_backward"), (GIVE, "forward_backward"), (COVER, "marginals"), (AGREE, "marginals")],
)
def test_a_kernel_without_the_entry_point_is_not_judged_by_it(property_name: str, entry: str) -> None:
    prop = property_of(FAMILY, property_name)
    assert prop.applies(CASE, replace(kernel(), extras={})) == f"the kernel has no '{entry}' among its extras"
    assert prop.applies(CASE, kernel()) is None


def test_without_the_entry_points_gradients_alone_are_judged() -> None:
    found = judge(CHAIN, PLAIN, replace(kernel(), extras={}))
    assert found.status is Status.HOLDS and len(found.findings) == 2
    wrong = judge(CHAIN, PLAIN, replace(kernel("ring of two positions"), extras={}))
    assert wrong.status is Status.VIOLATED


def test_a_kernel_without_projections_is_not_given_any() -> None:
    barred = replace(kernel(), options={"proj_end": ()})
    assert property_of(FAMILY, ENDS).applies(CASE, barred) == "the kernel takes no proj_end"
