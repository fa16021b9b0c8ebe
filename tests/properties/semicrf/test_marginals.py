"""Properties of marginals on semi-CRF kernels without the entry point, or without an input."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradoracle.model.case import parse
from tests.properties.judging import property_of
from tests.properties.semicrf.segment_probabilities import kernel
from tests.properties.semicrf.segmentations import FAMILY, PLAIN

ENDS = "dcum_is_what_ends_less_what_begins"
COVER = "marginals_cover_every_position_once"
AGREE = "marginals_are_the_gradients"


@pytest.mark.parametrize("property_name", [COVER, AGREE])
def test_a_kernel_without_the_entry_point_is_not_judged_by_it(property_name: str) -> None:
    _, _, case = parse(PLAIN)
    plain = replace(kernel(), extras={})
    assert property_of(FAMILY, property_name).applies(case, plain) == "the kernel has no 'marginals' among its extras"
    assert property_of(FAMILY, property_name).applies(case, kernel()) is None


def test_a_kernel_without_projections_is_not_given_any() -> None:
    _, _, case = parse(PLAIN)
    barred = replace(kernel(), options={"proj_end": ()})
    assert property_of(FAMILY, ENDS).applies(case, barred) == "the kernel takes no proj_end"
