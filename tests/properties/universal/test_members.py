"""Members where outputs are -inf, inputs are shared, and two dims roll together: on LSE and on small families."""

from __future__ import annotations

import pytest
import torch
from gradoracle.properties.members import permutable, rolled, separable
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.model.case import Case
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status
from tests.properties.judging import PROPERTIES
from tests.properties.lse import logsumexp
from tests.properties.toys import evidence
from tests.properties.universal.wrong_members import BLIND, CORRECT_LSE, SEGMENTS, SHARED, SINKS

PERMUTATION, INDEPENDENCE, TAILS = (
    PROPERTIES[name]
    for name in (
        "batch_and_head_permutation_equivariance",
        "batch_members_are_independent",
        "tail_and_padding_invariance",
    )
)


@pytest.mark.parametrize("line", [SHARED, SINKS, SEGMENTS, BLIND])
def test_the_dims_of_lse_are_found_with_rows_of_minus_infinity_and_shared_sinks(line):
    own = logsumexp.evidence(line, CORRECT_LSE)
    together = {"H": 1, "G": 1} if line == BLIND else {"H": 2, "G": 1}
    found = permutable(own)
    assert found.items() >= {"B": 1, **together}.items() and ("T" in found) is (line != BLIND)
    assert "B" in separable(own) and "H" not in separable(own), "a further query head has no key head"
    if line in (SEGMENTS, BLIND):
        assert own.forward()["lse"].isinf().any()


@pytest.mark.parametrize("line", [SHARED, SINKS, SEGMENTS, BLIND])
@pytest.mark.parametrize("prop", [PERMUTATION, INDEPENDENCE, TAILS], ids=lambda prop: prop.name)
def test_the_properties_of_members_hold_on_a_right_lse(prop, line):
    assert logsumexp.judge(prop, line, CORRECT_LSE).status is Status.HOLDS


@gradoracle.family(outputs=("o",), divides={"G": "H", "K": "H"})
def grouped(q: Float[Tensor, "H"], k: Float[Tensor, "G"], w: Float[Tensor, "K"]) -> Float[Tensor, "H"]:
    heads = q.shape[0]
    return q * k.repeat_interleave(heads // k.shape[0]) + w.repeat_interleave(heads // w.shape[0]).sin()


@pytest.mark.parametrize(
    ("sizes", "rolls"),
    [
        ({"H": 6, "G": 2, "K": 2}, {"H": 3, "G": 1, "K": 1}),
        ({"H": 8, "G": 2, "K": 4}, {"H": 4, "G": 1, "K": 2}),
        ({"H": 5, "G": 5, "K": 5}, {"H": 1, "G": 1, "K": 1}),
        ({"H": 5, "G": 1, "K": 1}, {"H": 1}),
        ({"H": 6, "G": 2, "K": 3}, {}),
    ],
)
def test_dims_that_divide_one_another_are_rolled_by_the_same_part(sizes, rolls):
    own = evidence(Kernel("right", "grouped", grouped.definition), Case("grouped", sizes), grouped)
    assert permutable(own) == rolls
    assert torch.equal(rolled(torch.arange(6), ("H",), {"H": 3}), torch.tensor([3, 4, 5, 0, 1, 2]))


@gradoracle.family(outputs=("o",))
def exploding(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    return (2000 * x).exp()


@gradoracle.family(outputs=("o",))
def empty_first(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    return torch.where(torch.arange(len(x)) == 0, -torch.inf, x)


def test_infinities_that_come_from_values_tell_nothing_and_those_of_a_mask_do():
    for family in (exploding, empty_first):
        own = evidence(Kernel("right", family.name, family.definition), Case(family.name, {"N": 4}), family)
        assert permutable(own) == {}, "neither may be rolled: its infinities would move, or say nothing"
    assert (
        separable(evidence(Kernel("e", "exploding", exploding.definition), Case("exploding", {"N": 4}), exploding))
        == set()
    )
