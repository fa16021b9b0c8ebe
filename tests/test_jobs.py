"""What is made of results does not depend on the order in which they come."""

from __future__ import annotations

import random

from gradoracle.case import parse
from gradoracle.examine import CaseResult, Job
from gradoracle.jobs import Turns

CASES = [parse(f"case:1 lse cpu float32 B=1 H=1 T={size} D=1 M=1 seed=0")[2] for size in range(1, 9)]


def test_results_come_in_the_order_of_the_plan() -> None:
    planned = [Job("lse", case, ()) for case in CASES]
    for seed in range(20):
        turns, mixed = Turns(planned), [CaseResult("lse", case, ()) for case in CASES]
        random.Random(seed).shuffle(mixed)
        found = [each for result in mixed for each in turns.add(result)]
        assert [each.case for each in found] == CASES and not list(turns.rest())


def test_where_one_never_comes_the_others_come_last_and_in_order() -> None:
    turns = Turns([Job("lse", case, ()) for case in CASES])
    mixed = [CaseResult("lse", case, ()) for case in CASES if case is not CASES[2]]
    random.Random(0).shuffle(mixed)
    found = [each.case for result in mixed for each in turns.add(result)]
    found += [each.case for each in turns.rest()]
    assert found == [case for case in CASES if case is not CASES[2]] and not list(turns.rest())
