"""Wrong kernels of lightning and the properties that they violate."""

from __future__ import annotations

from tests.properties.judging import Row
from tests.properties.lightning.linear_attention import ORACLE, kernel

SIZES = "case:1 lightning cpu float32 B=2 H=2 N=21 D=6 Dv=5"
PLAIN = f"{SIZES} seed=11"
STATE = f"{SIZES} --return_state=true seed=12"
INITIAL = f"{SIZES} initial_state~normal seed=13"
BOTH = f"{SIZES} --return_state=true initial_state~normal seed=14"
SHORT = "case:1 lightning cpu float32 B=1 H=1 N=3 D=2 Dv=2 --return_state=true initial_state~normal seed=15"

INNER = "q_dq_equals_o_g_row_by_row"
TOKENS = "k_dk_equals_v_dv_row_by_row"
LEAVE = "the_initial_state_takes_what_tokens_leave"
FIRST = "the_first_row_is_of_the_first_token"
LAST = "the_last_token_has_the_gradient_of_the_last_row"
ANSWERS = "the_state_answers_a_query_after_the_last_token"
SPLIT = "a_sequence_may_be_split_anywhere"
ASKED = "what_is_not_asked_for_gives_no_gradient"
ORDER = "the_order_of_the_past_leaves_what_follows"
MOVED = "tokens_of_zero_in_front_move_the_sequence"
DUAL = "gradients_are_outputs_of_the_same_kernel"
WHOLE = "past_and_future_add_up_to_the_whole"
DOUBLED = "doubling_one_input_doubles_what_is_linear_in_it"
EXACT = "central_differences_of_the_vjp_are_exact"

# property, fault, case
CAUGHT = [
    (INNER, "dq one percent large", PLAIN),
    (INNER, "state left out of dq", INITIAL),
    (TOKENS, "dv one percent large", BOTH),
    (LEAVE, "dk and dv one percent large", PLAIN),
    (LEAVE, "state cotangent dropped", STATE),
    (LEAVE, "dS0 one percent large", INITIAL),
    (FIRST, "diagonal left out", PLAIN),
    (FIRST, "chunk in its own state", INITIAL),
    (LAST, "state cotangent dropped", STATE),
    (LAST, "dk one percent large", PLAIN),
    ("the_state_ignores_the_queries", "queries in the state", BOTH),
    (ANSWERS, "last token left out of the state", PLAIN),
    (ANSWERS, "state rounded to 16 bit", BOTH),
    ("an_initial_state_of_zero_is_none", "ones without an initial state", STATE),
    ("the_gradient_of_the_initial_state_is_q_g", "dS0 one percent large", BOTH),
    ("the_gradient_of_the_initial_state_is_q_g", "state cotangent dropped", BOTH),
    (SPLIT, "last token left out of the state", PLAIN),
    (SPLIT, "state cotangent dropped", BOTH),
    (SPLIT, "chunk in its own state", SHORT),
    ("what_comes_later_leaves_o", "mask off by one", PLAIN),
    ("what_comes_later_leaves_o", "leaky mask", BOTH),
    ("what_came_before_leaves_dk_and_dv", "dk leaks to the next row", STATE),
    (ASKED, "dk leaks to the next row", BOTH),
    ("a_query_reaches_its_own_row_alone", "a query reads its neighbour", STATE),
    (ORDER, "decay", BOTH),
    (MOVED, "chunk in its own state", PLAIN),
    (MOVED, "first row of a chunk sees nothing before", BOTH),
    (DUAL, "dv one percent large", BOTH),
    (DUAL, "dq one percent large", INITIAL),
    (DUAL, "state cotangent dropped", STATE),
    (WHOLE, "mask off by one", INITIAL),
    (WHOLE, "diagonal left out", PLAIN),
    ("o_of_two_halves_of_the_tokens_adds_up", "normalised by the keys", BOTH),
    ("a_token_without_a_key_is_one_without_a_value", "values add up by themselves", STATE),
    (DOUBLED, "queries clamped", f"{SIZES} seed=4"),
    (DOUBLED, "normalised by the keys", f"{SIZES} initial_state~normal seed=1"),
    ("no_gradient_depends_on_its_own_input", "tanh of the scores", BOTH),
    ("the_jvp_is_the_sum_over_inputs", "jvp without k'", BOTH),
    ("the_hessian_has_no_diagonal", "a curvature in q", PLAIN),
    (EXACT, "tanh of the scores", BOTH),
    (EXACT, "normalised by the keys", PLAIN),
]

CORRECT = kernel()
ROWS = [Row(property_name, fault, line, kernel(fault), [CORRECT], ORACLE) for property_name, fault, line in CAUGHT]
