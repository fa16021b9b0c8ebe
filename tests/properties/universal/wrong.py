"""Wrong kernels and the properties of every family that they violate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gradoracle.host import interpreter
from gradoracle.model.case import Case, Draw
from gradoracle.model.kernel import Kernel
from gradoracle.oracle.truth import Oracle
from tests.properties.judging import Row
from tests.properties.lse import logsumexp
from tests.properties.toys import CASE, RIGHT, drawn, kernel, pick, right
from tests.properties.universal import launches, widened
from tests.properties.universal import wrong_derivatives as derivatives
from tests.properties.universal import wrong_members as members
from tests.properties.universal import wrong_modes as modes
from tests.properties.universal import wrong_runs as runs
from tests.properties.universal.wrong_runs import with_fault

ORACLE = Oracle(pick, "float64")
VJP, HVP = "vjp_matches_the_oracle", "hvp_matches_the_oracle"
DETERMINED, AGAIN = "runs_are_bit_identical", "first_call_equals_second"
UNMODIFIED, TWICE = "inputs_and_cotangents_are_unmodified", "backward_twice_with_retain_graph_gives_the_same"
UNWRITTEN, STAY = "no_memory_is_left_unwritten", "writes_stay_inside_their_tensors"
PERMUTATION, INDEPENDENCE = "batch_and_head_permutation_equivariance", "batch_members_are_independent"
INSIDE, RACE = "every_access_stays_inside_its_tensor", "programs_of_a_launch_do_not_race"
BARRIER, WRITTEN = "a_barrier_stands_between_a_store_and_a_load", "nothing_is_loaded_before_it_is_written"
STORES = "a_barrier_stands_between_two_stores"
ACCESSES = (INSIDE, RACE, BARRIER, STORES, WRITTEN)


def row(property_name: str, wrong: Kernel, *correct: Kernel, case: Case = CASE, fault: str = "", **fields: Any) -> Row:
    """A row of ``pick``."""
    return Row(property_name, fault or wrong.name, case, wrong, correct or [RIGHT], ORACLE, **fields)


DERIVATIVES = [
    row("forward_matches_the_oracle", kernel(derivatives.wrong_output)),
    row(VJP, kernel(derivatives.wrong_gradient)),
    row("jvp_matches_the_oracle", kernel(right, jvp=derivatives.jvp_of(scale=1.0001)), fault="jvp 1e-4 large"),
    row(HVP, kernel(derivatives.frozen_in_backward)),
    row("vjp_and_jvp_are_adjoint", kernel(right, jvp=derivatives.jvp_of(scale=1.01)), fault="jvp one percent large"),
    row("hvp_is_symmetric", kernel(right, hvp=derivatives.hvp_without_cross_terms), fault="no cross terms"),
    row("vjp_is_linear_in_the_cotangent", kernel(derivatives.clamped_cotangent)),
    row(
        "vjp_is_linear_in_the_cotangent",
        kernel(derivatives.noisy_gradient),
        kernel(derivatives.noisy_gradient, deterministic=False),  # doubling is bit-exact only where this is claimed
    ),
    row("jvp_of_a_tangent_on_each_input_alone", kernel(right, jvp=derivatives.jvp_of(drop=("y",))), fault="no y'"),
    row("vjp_of_a_cotangent_on_each_output_alone", kernel(derivatives.dropped_cotangent)),
    row(
        "the_outputs_of_an_explicit_jvp_match_the_oracle",
        kernel(right, jvp=derivatives.jvp_with_other_outputs),
        kernel(right, jvp=derivatives.jvp_of()),
        fault="other outputs",
        holds=["jvp_matches_the_oracle"],
    ),
    row("finite_where_the_truth_is_finite", kernel(derivatives.overflowing), case=drawn(x="extreme:1000")),
    row("hvp_finite_difference_convergence", kernel(derivatives.stale_statistics())),
    row(
        "hvp_finite_difference_convergence_is_of_second_order",
        kernel(derivatives.single_inside),
        holds=[VJP],  # in float32 it is correct
        says="the order is",
    ),
]
MODES = [
    row(property_name, kernel(wrong), kernel(right), kernel(modes.of_square(modes.Square)), fault=fault, holds=[HVP])
    for property_name, fault, wrong in (
        ("reverse_over_forward_gives_hvp_and_vjp", "no gradient", modes.of_square(modes.TangentWithoutAGradient)),
        ("forward_over_reverse_gives_the_hvp", "no tangent", modes.of_square(modes.BackwardWithoutATangent)),
        ("double_backward_in_the_cotangents_gives_the_jvp", "", modes.dropping_its_cotangent),
        ("hvp_of_some_inputs_alone", "", modes.needing_both),
    )
]
ABSENT = [
    row(
        "an_absent_double_backward_raises", kernel(modes.InNewMemory.apply),
        kernel(right), kernel(modes.Once.apply), kernel(modes.RaisesATypeError.apply), holds=[VJP],
    ),
    row(HVP, kernel(modes.Detached.apply), fault="differentiable in the cotangent alone", holds=[VJP]),
]  # fmt: skip
FAULTS = [
    (TWICE, "keeps on ctx"),
    (TWICE, "overwrites its cotangent"),
    (TWICE, "scales what it returned"),
    ("every_subset_of_requires_grad_gives_the_same_gradients", "y by way of x"),
    ("saved_tensors_are_unmodified", "overwrites what it saved"),
    (UNWRITTEN, "tail unwritten"),
    (UNWRITTEN, "gradient unwritten"),
    (STAY, "writes behind"),
    (STAY, "writes before"),
    (UNMODIFIED, "scales its input"),
    (UNMODIFIED, "overwrites its cotangent"),
]
RUNS = [
    *(row(property_name, with_fault(fault), with_fault(""), fault=fault) for property_name, fault in FAULTS),
    row(
        UNMODIFIED,
        with_fault("writes around its input"),
        with_fault(""),
        case=CASE.with_draws(x=Draw("normal", "sliced")),
        fault="writes into the gap of a sliced input",
        says="bytes around the elements of x",
    ),
    row(TWICE, kernel(runs.Once.apply), fault="raises", says="the workspace of this graph was given back"),
    row(DETERMINED, kernel(runs.counting()), RIGHT, kernel(runs.counting(), deterministic=False)),
    row(DETERMINED, kernel(runs.noisy(), deterministic=False)),
    row(AGAIN, kernel(runs.cached())),
    row(AGAIN, kernel(runs.cached(), deterministic=False), fault="by_address, not determined"),
    row(AGAIN, kernel(runs.of_leaves())),
    row(AGAIN, kernel(runs.of_parameters())),
    row(AGAIN, kernel(runs.Reusing.apply), fault="overwrites an earlier result"),
]
OF_LSE = [
    (PERMUTATION, members.last_member_apart, members.SINKS),
    (PERMUTATION, members.last_head_apart, members.SHARED),
    (PERMUTATION, members.last_head_apart, members.BLIND),
    (PERMUTATION, members.large_number_in_the_last_member, members.BLIND),
    (INDEPENDENCE, members.leaking_lse, members.SINKS),
    (INDEPENDENCE, members.leaking_lse, members.SEGMENTS),
]
SPARSE = Oracle(members.sparse, "float64")
TAILS = "tail_and_padding_invariance"
CROSSED = logsumexp.kernel("key heads interleaved")
MEMBERS = [
    row(PERMUTATION, kernel(members.first_member_apart)),
    row(INDEPENDENCE, kernel(members.leaking)),
    row(TAILS, kernel(members.odd_tail)),
    *(
        Row(
            property_name,
            members.WRONG_SPARSE.name,
            line,
            members.WRONG_SPARSE,
            members.CORRECT_SPARSE,
            SPARSE,
            also=[VJP],
            holds=["forward_matches_the_oracle"],
        )
        for property_name in (TAILS, INDEPENDENCE)
        for line in members.SPARSE_CASES
    ),
    *(
        Row(
            property_name,
            f"lse {change.__name__}",
            line,
            members.changed(change),
            [members.CORRECT_LSE],
            logsumexp.ORACLE,
        )
        for property_name, change, line in OF_LSE
    ),
    Row(PERMUTATION, CROSSED.name, members.SHARED, CROSSED, [members.CORRECT_LSE], logsumexp.ORACLE),
    *(
        row("offsets_past_2_31_give_the_same", kernel(call), case=replace(CASE, seed=seed))
        for call in (members.wrapping, members.cotangent_wrapping)
        for seed in (0, 7)
    ),
]
TRITON = pytest.mark.skipif(interpreter.explain_unavailable() is not None, reason="needs Triton's interpreter")
SUMS, DOUBLE = Oracle(launches.sums, "float64"), Oracle(launches.double, "float64")
# property, fault, kernel; the other properties of accesses hold
OF_SUMS = [
    (INSIDE, "a row too many", launches.summing(more=1)),
    (RACE, "stored", launches.summing("stored")),
    (RACE, "mixed", launches.summing("mixed")),
    (WRITTEN, "sums begin anywhere", launches.summing(empty=True)),
    (WRITTEN, "a partial sum missing", launches.by_parts(missing=1)),
]
LAUNCHES = [
    *(
        Row(
            property_name, fault, Case("sums", {"B": 3, "N": 10}), launches.of_sums(wrong),
            [launches.of_sums(launches.summing())], SUMS,
            holds=[other for other in ACCESSES if other != property_name], marks=[TRITON],
        )
        for property_name, fault, wrong in OF_SUMS
    ),
    Row(
        BARRIER, "none", Case("double", {"B": 3, "N": 16}), launches.of_double(launches.doubling("none")),
        [launches.of_double(launches.doubling("barrier"))], DOUBLE, marks=[TRITON],
    ),
    *(
        Row(
            STORES, order, Case("double", {"B": 3, "N": 16}), launches.of_double(launches.clearing(order)),
            [launches.of_double(launches.clearing("barrier"))], DOUBLE,
            holds=[other for other in ACCESSES if other != STORES], marks=[TRITON],
        )
        for order in ("none", "atomic")
    ),
    *(
        Row(
            WRITTEN, how, Case("double", {"B": 3, "N": 10}), launches.of_double(launches.placeholding(how)),
            [launches.of_double(launches.placeholding(each)) for each in ("masked", "discarded")], DOUBLE,
            holds=[other for other in ACCESSES if other != WRITTEN], marks=[TRITON],
        )
        for how in ("times 0", "compared", "smallest")
    ),
]  # fmt: skip
DEFINITION = "definition_is_exact_when_widened"
SOFTMAX, NORMED = Oracle(widened.scaled_softmax, "float64"), Oracle(widened.normed, "float64")
# wrong kernels whose results in 16 bits are as good as those of correct ones
HIDDEN = [
    *(
        Row(
            DEFINITION, wrong.name, widened.case("scaled_softmax", dtype), wrong, widened.CORRECT_SOFTMAX, SOFTMAX,
            holds=["forward_matches_the_oracle", VJP], marks=[TRITON],
        )
        for dtype in ("bfloat16", "float16")
        for wrong in (
            widened.softmax("scale 1e-5 large", slip=1e-5),
            widened.softmax("scale 2e-6 large", slip=2e-6),
            widened.softmax("log2 e to four digits", log2_e=1.4427),
        )
    ),
    *(
        Row(
            DEFINITION, wrong.name, widened.case("normed", dtype), wrong, [widened.norm("correct")], NORMED,
            holds=["forward_matches_the_oracle", VJP], marks=[TRITON],
        )
        for dtype in ("bfloat16", "float16")
        for wrong in (widened.norm("eps outside the root", outside=True), widened.norm("eps 2e-6 small", eps=8e-6))
    ),
    *(
        Row(
            DEFINITION, "forward mode 1e-5 large", widened.case("scaled_softmax", dtype),
            widened.with_explicit_jvp("slipped", slip=1e-5), [widened.with_explicit_jvp("correct")], SOFTMAX,
            holds=["forward_matches_the_oracle", VJP, "jvp_matches_the_oracle"], marks=[TRITON],
        )
        for dtype in ("bfloat16", "float16")
    ),
]  # fmt: skip
ROWS = [*DERIVATIVES, *MODES, *ABSENT, *RUNS, *MEMBERS, *LAUNCHES, *HIDDEN]
