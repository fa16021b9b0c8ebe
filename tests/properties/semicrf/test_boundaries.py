"""Properties of alpha, beta and boundaries on a semi-CRF kernel without the entry points."""

from __future__ import annotations

from dataclasses import replace

from gradoracle.model.case import parse
from gradoracle.model.verdict import Status
from tests.properties.judging import property_of
from tests.properties.semicrf.segment_probabilities import kernel
from tests.properties.semicrf.segmentations import FAMILY, PLAIN, judge

MEET = "alpha_and_beta_meet_at_log_z_at_both_ends"
GIVE = "alpha_and_beta_give_the_boundaries"
CHAIN = "with_one_duration_every_place_is_a_boundary"


def test_without_the_entry_points_gradients_alone_are_judged() -> None:
    _, _, case = parse(PLAIN)
    plain = replace(kernel(), extras={})
    for property_name in (MEET, GIVE):
        assert (
            property_of(FAMILY, property_name).applies(case, plain)
            == "the kernel has no 'forward_backward' among its extras"
        )
    found = judge(CHAIN, PLAIN, plain)
    assert found.status is Status.HOLDS and len(found.findings) == 2
    wrong = judge(CHAIN, PLAIN, replace(kernel("ring of two positions"), extras={}))
    assert wrong.status is Status.VIOLATED
