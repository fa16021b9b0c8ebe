"""Each law of SDPA catches a kernel that is wrong in its way, and the correct kernel holds on the same case."""

from __future__ import annotations

import pytest

from gradoracle.model.finding import Outcome
from gradoracle.model.verdict import Status
from tests.properties.sdpa.attention import LAWS, judge, kernel

PLAIN = "case:1 sdpa cpu float32 B=2 H=2 T=9 M=13 D=8 Dv=6 seed=11"
CAUSAL = "case:1 sdpa cpu float32 B=2 H=2 T=9 M=13 D=8 Dv=6 --causal=true seed=12"
BLIND = "case:1 sdpa cpu float32 B=2 H=2 T=17 M=5 D=8 Dv=6 --causal=true seed=13"

# law, fault, case
CAUGHT = [
    ("outputs_lie_in_the_hull_of_the_values", "output one percent large", BLIND),
    ("outputs_lie_in_the_hull_of_the_values", "blind rows average", BLIND),
    ("ones_transposed_dv_equals_ones_transposed_g", "p not normalised in backward", PLAIN),
    ("ones_transposed_dv_equals_ones_transposed_g", "dv of another head", PLAIN),
    ("q_dq_equals_k_dk", "dk lacks the scale", PLAIN),
    ("v_dv_equals_o_g", "output one percent large", PLAIN),
    ("v_dv_equals_o_g", "dv of another head", PLAIN),
    ("rows_that_see_no_key_are_zero_in_every_derivative", "blind rows average", BLIND),
    ("rows_that_see_no_key_are_zero_in_every_derivative", "aligned top-left", BLIND),
    ("a_query_that_sees_one_key_gives_its_value", "padded key in l", PLAIN),
    ("a_query_that_sees_one_key_gives_its_value", "mask off by one", BLIND),
    ("ones_transposed_hvp_v_is_zero", "hvp not centred", PLAIN),
    ("rows_of_ds_sum_to_zero", "no z", PLAIN),
    ("values_of_one_give_outputs_of_one", "padded key in l", PLAIN),
    ("values_of_one_give_outputs_of_one", "output one percent large", BLIND),
    ("equal_values_leave_q_and_k_no_gradient", "no z", PLAIN),
    ("rows_of_the_tangent_of_p_sum_to_zero", "jvp not centred", PLAIN),
    ("a_common_tangent_of_all_keys_leaves_o", "jvp not centred", PLAIN),
    ("the_tangent_along_v_is_the_attention_of_the_tangent", "v' dropped", PLAIN),
    ("queries_of_zero_average_the_values", "padded key in l", PLAIN),
    ("queries_of_zero_average_the_values", "last key dropped", PLAIN),
    ("shifting_keys_by_a_constant_leaves_o", "padded key in l", PLAIN),
    ("shifting_keys_by_a_constant_leaves_o", "k clamped", PLAIN),
    ("key_permutation", "last key dropped", PLAIN),
    ("repeating_every_key_leaves_o", "last key dropped", PLAIN),
    ("repeating_every_key_leaves_o", "padded key in l", PLAIN),
    ("causal_prefix", "mask off by one", CAUSAL),
    ("causal_prefix", "mask off by one", BLIND),
    ("the_last_query_sees_every_key", "aligned top-left", CAUSAL),
    ("the_scale_folds_into_q", "default scale in backward", PLAIN),
    ("scaling_q_up_and_k_down_leaves_o", "q clamped", PLAIN),
    ("doubling_the_values_doubles_o", "values clamped", PLAIN),
    ("the_saved_statistics_are_those_of_the_scores", "m in base 2", PLAIN),
    ("the_saved_statistics_are_those_of_the_scores", "padded key in l", PLAIN),
    ("l_lies_between_one_and_the_number_of_keys", "m of the whole head", PLAIN),
    ("stats_rebuild_p", "l of another row", PLAIN),
    ("stats_rebuild_p", "m in base 2", CAUSAL),
    ("backward_from_the_saved_statistics_is_the_vjp", "dk lacks the scale", PLAIN),
    ("jvp_from_the_saved_statistics_is_the_jvp", "jvp not centred", PLAIN),
    ("frozen_stats_jvp_vs_autograd_gap", "frozen jvp centred", PLAIN),
    ("frozen_stats_jvp_vs_autograd_gap", "jvp not centred", PLAIN),
    ("frozen_stats_jvp_of_stale_statistics", "stale statistics ignored", PLAIN),
    ("frozen_stats_jvp_of_stale_statistics", "frozen jvp centred", BLIND),
    ("the_central_difference_converges_to_the_hvp", "one-sided difference", PLAIN),
    ("the_central_difference_converges_to_the_hvp", "wrong step", PLAIN),
]


@pytest.mark.parametrize(("law", "fault", "line"), CAUGHT, ids=[f"{law}-{fault}" for law, fault, _ in CAUGHT])
def test_the_wrong_kernel_is_caught_and_the_right_one_holds(law: str, fault: str, line: str) -> None:
    right = judge(law, line, kernel())
    assert right.status is Status.HOLDS, [f for f in right.findings if f.outcome is Outcome.VIOLATED] or right.reason
    wrong = judge(law, line, kernel(fault))
    assert wrong.status is Status.VIOLATED, (wrong.status, wrong.reason, wrong.findings)


def test_every_law_has_a_fault_that_it_catches() -> None:
    elsewhere = {"explicit_entry_points_agree_with_autograd"}  # test_kernel.py: a fault in the Triton wrapper
    assert {law for law, _, _ in CAUGHT} | elsewhere == set(LAWS)


@pytest.mark.parametrize("law", LAWS)
def test_every_law_tells_its_contract(law: str) -> None:
    found = LAWS[law]
    assert found.statement.endswith(".") and found.because and found.catches and found.cannot_catch
