"""Each law of the semi-CRF's gauges catches a wrong kernel, and the right one holds on the same case."""

from __future__ import annotations

import pytest
import torch
from gradoracle.properties.semicrf.laws.gauges import GAUGES, on_a_grid

from tests.properties.semicrf.samples import sample
from tests.properties.semicrf.segment_probabilities import kernel
from tests.properties.semicrf.segmentations import (
    PLAIN,
    PROJECTED,
    SIZES,
    assert_caught,
    assert_holds,
    assert_not_violated_without_paths,
)

BY_DURATION = f"{SIZES} transition_by_duration~normal proj_start~normal seed=13"
LAWS = {law.name: law for law in GAUGES}

LABELS = "dcum_sums_to_zero_for_each_label"
PAST = "nothing_past_the_length_has_a_gradient"
PLACES = "as_much_ends_at_a_place_as_begins_there"
HESSIAN = "hessian_products_do_not_move_the_gauges"
SHIFT = "a_shift_of_all_labels_moves_log_z_by_its_ends"
STEEP = "steps_between_places_may_leave_the_range_of_exp"
POSITION = "a_score_for_each_position_may_stand_in_either_term"
ANY_TERM = "a_score_of_a_label_may_stand_in_any_term"
BY_TABLE = "a_score_by_duration_may_stand_in_the_transition"
NAMES = "the_names_of_labels_do_not_matter"
TANGENTS = "tangents_along_gauges_move_log_z_by_its_ends"

# law, fault, case
CAUGHT = [
    (LABELS, "last end left out of dcum", PLAIN),
    (LABELS, "dcum of one label one percent large at one place", BY_DURATION),
    (PAST, "dcum past the length", PLAIN),
    (PAST, "dproj_end past the length", PROJECTED),
    (PLACES, "first start left out of dcum", PLAIN),
    (PLACES, "cotangent applied twice", PROJECTED),
    (HESSIAN, "hvp without the first place", PLAIN),
    (HESSIAN, "hvp of duration_bias one percent large", BY_DURATION),
    (SHIFT, "cum_scores clamped", PLAIN),
    (SHIFT, "cum_scores of one place later", PROJECTED),
    (STEEP, "steps beyond the range of exp lost", PLAIN),
    (STEEP, "cum_scores clamped", BY_DURATION),
    (POSITION, "durations off by one", PLAIN),
    (POSITION, "cum_scores clamped", BY_DURATION),
    (ANY_TERM, "transition transposed", f"{SIZES} transition~normal seed=12"),
    (ANY_TERM, "labels of proj_start crossed", f"{SIZES} transition~normal proj_start~normal seed=13"),
    (ANY_TERM, "proj_end left out", f"{SIZES} transition~normal proj_start~normal proj_end~normal seed=11"),
    (BY_TABLE, "transition of another duration", PLAIN),
    (BY_TABLE, "dtransition of another duration", PROJECTED),
    (NAMES, "a label apart", PLAIN),
    (NAMES, "labels of dduration crossed", BY_DURATION),
    (TANGENTS, "jvp without the transition", PLAIN),
    (TANGENTS, "hvp of duration_bias off", PROJECTED),
]


@pytest.mark.parametrize(("law", "fault", "line"), CAUGHT, ids=[f"{law}-{fault}" for law, fault, _ in CAUGHT])
def test_the_wrong_kernel_is_caught_and_the_right_one_holds(law: str, fault: str, line: str) -> None:
    assert_caught(LAWS[law], line, kernel(), kernel(fault))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("law", "line"), {law: line for law, _, line in CAUGHT}.items())
def test_the_correct_kernel_holds_in_16_bit(law: str, line: str, dtype: str) -> None:
    assert_holds(LAWS[law], line, kernel(), dtype)


@pytest.mark.parametrize("law", LAWS)
def test_it_holds_where_there_is_no_path_or_no_position(law: str) -> None:
    assert_not_violated_without_paths(LAWS[law], kernel())


def test_every_law_has_a_fault_that_it_catches() -> None:
    assert {law for law, _, _ in CAUGHT} == set(LAWS)


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 24), ("bfloat16", 8), ("float16", 11)])
def test_a_grid_holds_scores_and_moved_scores_exactly(dtype: str, bits: int) -> None:
    own = sample("transition", "B=2 T=30 C=2 K=3")
    own = own.map(lambda t: t.to(getattr(torch, dtype)) if t.is_floating_point() else t)
    reach = 2 ** (bits - 3)
    move = torch.full((2, 31, 2), float(reach), dtype=torch.float64)
    before, after, unit = on_a_grid(own, {"cum_scores": move}, dtype)
    gained = after.inputs["cum_scores"].double() - before.inputs["cum_scores"].double()
    assert bool((gained == reach * unit).all()) and reach * unit > 0.1
    assert float((before.inputs["cum_scores"].double() - own.inputs["cum_scores"].double()).abs().max()) <= unit / 2


def test_a_move_that_no_grid_holds_is_told() -> None:
    own = sample("transition", "B=1 T=300 C=2 K=3")
    own = own.map(lambda t: t.bfloat16() if t.is_floating_point() else t)
    assert on_a_grid(own, {"cum_scores": -torch.arange(301.0).double()[:, None]}, "bfloat16") is None
