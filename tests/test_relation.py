"""Relations between a kernel's own tensors: what they cannot judge they say, what is wrong they find."""

from __future__ import annotations

import torch

from gradoracle.finding import Outcome
from gradoracle.relation import Part, related
from gradoracle.rules import Allowance


def part(got, true):
    sigma = true.abs() * 1e-3
    return Part("o", got, true, Allowance(sigma, torch.zeros(16, *true.shape, dtype=torch.float64)))


def judged(got, true):
    return related("sum of o", lambda o: o.sum() - 10, [part(got, true)], scale=lambda o: o.sum(), continuous=True)


TRUE = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)


def test_a_relation_holds_within_the_errors_of_its_parts_and_not_beyond():
    assert judged(TRUE.half(), TRUE).outcome is Outcome.HOLDS
    wrong = judged((TRUE * 1.02).half(), TRUE)
    assert wrong.outcome is Outcome.VIOLATED and wrong.among == ("o",) and not wrong.lost


def test_non_finite_values_are_wrong_only_where_the_dtype_holds_the_truth():
    lost = torch.tensor([1.0, 2.0, 3.0, torch.inf], dtype=torch.float16)
    assert judged(lost, TRUE).outcome is Outcome.VIOLATED and judged(lost, TRUE).lost
    beyond = torch.tensor([1.0, 2.0, 3.0, 1e5], dtype=torch.float64)
    assert judged(lost, beyond).outcome is Outcome.NOT_CHECKED
