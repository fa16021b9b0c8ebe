"""Relations between a kernel's own tensors: what they cannot judge they say, what is wrong they find."""

from __future__ import annotations

import torch

from gradoracle.check.acceptance import Allowance
from gradoracle.check.error_relation import Part, related
from gradoracle.model.finding import Outcome


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


INFINITE = torch.tensor([1.0, 2.0, -torch.inf, -torch.inf], dtype=torch.float64)


def differing(got, true, other=None):
    """That two outputs are equal, the second of them correct."""
    parts = [part(got, true), part(true.float() if other is None else other, true)]
    return related("a - b", lambda a, b: a - b, parts, scale=lambda a, b: a.abs(), continuous=True)


def test_the_same_infinity_as_the_truth_agrees_and_anything_else_is_wrong():
    assert differing(INFINITE.float(), INFINITE).outcome is Outcome.HOLDS
    for wrong in (torch.inf, -1e30, torch.nan, 0.0):
        got = INFINITE.float()
        got[3] = wrong
        found = differing(got, INFINITE)
        assert found.outcome is Outcome.VIOLATED and found.worst.index == (3,) and found.among == ("o",)
        assert found.message.startswith("o ") and "infinite truth" in found.message
    lost = INFINITE.float()
    lost[0] = -torch.inf
    assert differing(lost, INFINITE).outcome is Outcome.VIOLATED and differing(lost, INFINITE).lost
    wide = INFINITE.float()
    wide[1] *= 1.1
    assert differing(wide, INFINITE).outcome is Outcome.VIOLATED, "the finite elements are judged as before"


def test_an_element_that_an_infinity_enters_is_not_checked_further():
    def judged(got, expression):
        return related("property", expression, [part(got, INFINITE)], scale=lambda o: o.abs() + 1, continuous=True)

    found = judged(INFINITE.float(), lambda o: o - torch.tensor([1.0, 2.0, 5.0, 7.0], dtype=torch.float64))
    assert (found.outcome, found.elements, found.undecided) == (Outcome.HOLDS, 2, 2)
    everywhere = judged(INFINITE.float(), lambda o: (o - o.roll(1, 0)).sum().expand(4) + o.sum() - 3)
    assert everywhere.outcome is Outcome.NOT_CHECKED and everywhere.message == "no element could be compared"
