"""Each property is violated by a wrong kernel, on a case where correct kernels satisfy it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gradoracle.properties.universal import UNIVERSAL

from gradoracle.check.evidence import Evidence
from gradoracle.model.finding import Outcome
from gradoracle.model.verdict import Status
from gradoracle.project.target import shipped
from tests.properties.gated_delta import wrong as gated_delta
from tests.properties.judging import Row, evidence, judge_on
from tests.properties.lightning import wrong as lightning
from tests.properties.lse import wrong as lse
from tests.properties.sdpa import wrong as sdpa
from tests.properties.semicrf import wrong as semicrf
from tests.properties.universal import wrong as universal

ROWS = [*sdpa.ROWS, *lse.ROWS, *lightning.ROWS, *gated_delta.ROWS, *semicrf.ROWS, *universal.ROWS]
NAMED = [
    pytest.param(row, id=f"{row.oracle.family.name}-{row.property_name}-{row.fault}", marks=row.marks) for row in ROWS
]
# where no row does, the test that shows a violation
ELSEWHERE = {
    "no_shared_allocation_has_two_chunk_axes": (
        "lightning/test_memory.py",
        "test_scores_that_are_turned_are_named_with_the_gpu",
    ),
    "autograd_through_an_explicit_vjp_matches_the_oracle": (
        "../check/test_claims.py",
        "test_the_line_says_what_is_known_of_each_derivative",
    ),
    "any_layout_of_inputs_is_right_or_refused": (
        "universal/test_batches.py",
        "test_a_kernel_blind_to_strides_is_caught_in_every_layout_that_it_can_read",
    ),
    "any_layout_of_cotangents_is_right_or_refused": (
        "universal/test_batches.py",
        "test_a_kernel_blind_to_strides_is_caught_in_every_layout_that_it_can_read",
    ),
    "every_block_configuration_agrees": (
        "universal/test_runs.py",
        "test_a_wrong_block_configuration_is_found_among_right_ones",
    ),
    "integer_outputs_equal_those_of_the_definition": (
        "universal/test_integers.py",
        "test_wrong_integers_are_violations",
    ),
    "bad_arguments_raise_value_error": (
        "universal/test_runs.py",
        "test_guardrails_are_held_to_argument_value_and_want",
    ),
    "declared_support_is_accepted": (
        "universal/test_runs.py",
        "test_a_refusal_inside_declared_support_is_a_violation",
    ),
    "every_autotuned_configuration_matches_the_oracle": (
        "universal/test_autotuning.py",
        "test_the_wrong_configuration_is_found_and_the_autotuner_left_as_it_was",
    ),
    "trials_of_an_autotuner_leave_nothing_behind": (
        "universal/test_autotuning.py",
        "test_the_wrong_configuration_is_found_and_the_autotuner_left_as_it_was",
    ),
    "shared_memory_fits_each_architecture": (
        "universal/test_architectures.py",
        "test_tiles_that_fit_hold_and_tiles_that_do_not_are_named_with_the_gpu",
    ),
    "non_default_stream_gives_the_same": (
        "universal/test_devices.py",
        "test_a_launch_on_the_default_stream_reads_too_soon",
    ),
    "second_device_gives_the_same": (
        "universal/test_devices.py",
        "test_a_second_device_gives_the_same_or_is_missing",
    ),
    **dict.fromkeys(
        (
            "the_share_of_kept_elements_is_that_of_the_option",
            "the_mask_of_backward_is_that_of_forward",
            "the_mask_depends_on_the_seed_alone",
            "the_same_seed_gives_the_same_numbers",
            "another_seed_gives_another_mask",
            "outputs_are_those_of_the_kept_elements",
            "gradients_are_those_of_the_kept_elements",
        ),
        ("universal/test_randomness.py", "test_a_wrong_mask_violates_its_law_and_the_right_one_holds_there"),
    ),
    **dict.fromkeys(
        (
            "rounding_at_random_has_the_mean_of_the_value",
            "a_rounded_value_is_one_of_its_neighbours",
        ),
        ("universal/test_randomness.py", "test_a_wrong_rounding_violates_its_law_and_a_fair_one_holds_there"),
    ),
}


def holding(own: Evidence, properties: tuple[str, ...]) -> None:
    for property_name in properties:
        found = judge_on(property_name, own)
        violated = [finding for finding in found.findings if finding.outcome is Outcome.VIOLATED]
        assert found.status is Status.HOLDS, (property_name, found.status, violated or found.reason)


@pytest.mark.parametrize("row", NAMED)
def test_the_wrong_kernel_is_caught_where_correct_ones_hold(row: Row) -> None:
    properties = (row.property_name, *row.also)
    for subject in row.correct:
        holding(evidence(row.case, subject, row.oracle), properties)
    own = evidence(row.case, row.wrong, row.oracle)
    for property_name in properties:
        found = judge_on(property_name, own)
        assert found.status is Status.VIOLATED, (property_name, found.status, found.reason, found.findings)
        if property_name == row.property_name:
            violated = [finding.message for finding in found.findings if finding.outcome is Outcome.VIOLATED]
            assert any(row.says in message for message in violated)
    holding(evidence(row.case, row.wrong, row.oracle), tuple(row.holds))


FAMILIES = {name: target.family for name, target in shipped().items()}
PROPERTIES = {name: family.properties for name, family in FAMILIES.items()} | {"universal": UNIVERSAL}
VIOLATED = {
    name: {property_name for row in found.ROWS for property_name in (row.property_name, *row.also)}
    for name, found in {
        "sdpa": sdpa,
        "lse": lse,
        "lightning": lightning,
        "gated_delta": gated_delta,
        "semicrf": semicrf,
        "universal": universal,
    }.items()
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_property_has_a_row_or_a_test_of_its_own(name: str) -> None:
    own = {prop.name for prop in PROPERTIES[name]}
    assert own - VIOLATED[name] == own & set(ELSEWHERE)


def test_the_tests_elsewhere_exist() -> None:
    for file, test in ELSEWHERE.values():
        assert f"\ndef {test}(" in (Path(__file__).parent / file).read_text()
    assert set(ELSEWHERE) <= {prop.name for properties in PROPERTIES.values() for prop in properties}
