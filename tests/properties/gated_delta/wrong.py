"""Wrong kernels of the gated delta rule and the properties that they violate."""

from __future__ import annotations

from tests.properties.gated_delta.delta_rule import ORACLE, kernel
from tests.properties.judging import Row

SIZES = "case:1 gated_delta cpu float32 B=2 H=2 T=21 D=6 Dv=5"
PLAIN = f"{SIZES} seed=11"
STATE = f"{SIZES} --return_state=true seed=12"
LARGE = f"{SIZES} v~normal:30 do~normal:30 seed=11"  # in float16 too no result is near the smallest numbers
BOTH = f"{SIZES} --return_state=true initial_state~normal seed=14"

ASKED = "what_is_not_asked_for_gives_no_gradient"
BETA = "nothing_is_written_without_beta"
ANSWERS = "the_state_answers_a_query_after_the_last_token"
SPLIT = "a_sequence_may_be_split_anywhere"
DELTA = "without_decay_it_is_the_delta_rule"
ALONE = "a coordinate of the state is overwritten by its own part of the key"

# property, fault, case
CAUGHT = [
    ("what_comes_later_leaves_o", "a row reads the value of the next", PLAIN),
    (ASKED, "dbeta leaks to the next row", PLAIN),
    (ASKED, "dk leaks to the next row", BOTH),
    (BETA, "ones without an initial state", PLAIN),
    (BETA, "values written without beta", STATE),
    ("what_is_forgotten_leaves_each_token_alone", "a decay of at least one half", PLAIN),
    ("orthonormal_keys_overwrite", "what a key has is not taken away", PLAIN),
    (DELTA, "a decay of at most 0.999", PLAIN),
    (DELTA, ALONE, PLAIN),
    ("scaling_the_values_scales_all_but_their_gradient", "state clamped", LARGE),
    (ANSWERS, "last token left out of the state", PLAIN),
    (ANSWERS, "state rounded to 16 bit", BOTH),
    (SPLIT, "an initial state decays twice", PLAIN),
    (SPLIT, "last token left out of the state", STATE),
    (SPLIT, "state rounded to 16 bit", BOTH),
]

CORRECT = kernel()
OTHERS = [prop.name for prop in ORACLE.family.properties if prop.name not in (DELTA, SPLIT)]
"""The laws that see nothing of the fault ALONE, which is none for unit vectors as keys."""
ROWS = [
    Row(name, fault, line, kernel(fault), [CORRECT], ORACLE, holds=OTHERS if fault == ALONE else ())
    for name, fault, line in CAUGHT
]
