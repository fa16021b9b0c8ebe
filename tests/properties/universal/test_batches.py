"""Properties of batches and layouts: the dims that they roll and extend, and layouts that kernels refuse or misread."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gradoracle.properties.members import Appended, apart, everywhere, extensible, permutable, rolled, separable
from gradoracle.properties.universal.strides import OTHERS, layouts_of
from jaxtyping import Bool, Float
from torch import Tensor

import gradoracle
from gradoracle.model.case import Case
from gradoracle.model.finding import Outcome
from gradoracle.model.verdict import Status
from gradoracle.oracle.truth import Oracle
from tests.properties import judging
from tests.properties.faults import edited
from tests.properties.judging import PROPERTIES
from tests.properties.toys import CASE, RIGHT, TOTAL, WEIGH, evidence, gradients, judged, kernel, right, total, weigh
from tests.properties.universal.wrong_members import SORTED_SPARSE, SPARSE_CASES, sparse

INPUTS, COTANGENTS = (PROPERTIES[f"any_layout_of_{what}_is_right_or_refused"] for what in ("inputs", "cotangents"))


def test_dims_are_those_that_the_definition_treats_apart():
    picked, weighed, summed = (
        evidence(subject, Case(family.name, CASE.dims), family)
        for subject, family in ((RIGHT, evidence(RIGHT).oracle.family), (WEIGH, weigh), (TOTAL, total))
    )
    assert (permutable(picked), extensible(picked), apart(picked)) == ({"B": 1}, {"B"}, {"B"})
    assert everywhere(picked, apart(picked)) == {"B"}
    assert (permutable(weighed), apart(weighed)) == ({"B": 1, "N": 1}, {"B", "N"})
    assert everywhere(weighed, apart(weighed)) == {"N"}  # the weight is shared by the members of B
    assert (permutable(summed), extensible(summed), apart(summed)) == ({"B": 1}, {"B", "N"}, {"B"})


@pytest.mark.parametrize("size", [2, 5, 23, 65])
def test_a_dim_along_which_only_small_new_members_do_nothing_is_not_extensible(size):
    subject = evidence(kernel(sparse.definition, family="sparse"), Case("sparse", {"B": 2, "H": 2, "N": size}), sparse)
    assert extensible(subject) == apart(subject) == {"B", "H"}


def test_a_kernel_that_refuses_nan_is_not_checked_with_it():
    own = judging.evidence(SPARSE_CASES[0], SORTED_SPARSE, Oracle(sparse, "float64"))
    found = judging.judge_on(PROPERTIES["batch_members_are_independent"], own)
    assert found.status is Status.NOT_CHECKED and found.reason.startswith("the kernel refuses NaN: "), found
    assert judging.judge_on(PROPERTIES["tail_and_padding_invariance"], own).status is Status.HOLDS


@gradoracle.family
def mixed(x: Float[Tensor, "B L N"]) -> Float[Tensor, "B N"]:
    """Layers weighted by a softmax over them, of a score that sums over N: with one layer its weight is 1 or NaN."""
    return (torch.softmax(x.sum(-1), 1)[:, :, None] * x).sum(1)


def test_members_that_are_apart_but_for_nan_are_not_separable():
    subject = evidence(kernel(mixed.definition, family="mixed"), Case("mixed", {"B": 3, "L": 1, "N": 5}), mixed)
    assert apart(subject) == {"B", "N"} and separable(subject) == {"B"}


@gradoracle.family(domains={"mask": gradoracle.Mask(some=True)})
def kept(x: Float[Tensor, "B N"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return torch.softmax(x.masked_fill(~mask, -torch.inf), -1)


def over_the_batch(x, mask):
    """The definition, plus 0 times the sum over the batch."""
    return kept.definition(x, mask) + 0 * x.sum(0)


def over_the_keys(x, mask):
    """The definition, plus 0 times the sum over the keys."""
    return kept.definition(x, mask) + 0 * x.sum(1, keepdim=True)


@pytest.mark.parametrize(
    ("dims", "wrong"), [({"B": 1, "N": 3}, over_the_keys), ({"B": 3, "N": 1}, over_the_batch)], ids=["keys", "batch"]
)
def test_where_the_gradients_of_a_definition_carry_a_nan_no_kernel_is_asked_to_stop_it(dims, wrong):
    """A mask that leaves one key makes the keys independent; 0 times the NaN of a masked one still enters dx."""
    for call, expected in ((kept.definition, Status.HOLDS), (wrong, Status.VIOLATED)):
        own = evidence(kernel(call, family="kept"), Case("kept", dims), kept)
        own.sample.inputs["mask"].zero_()[:, dims["N"] // 2] = True
        assert separable(own) == {name for name, size in dims.items() if size > 1}
        found = judging.judge_on(PROPERTIES["batch_members_are_independent"], own)
        assert found.status is expected, found
        judged = {each.tensor.partition(",")[0] for each in found.findings}
        assert ("dx" in judged) == (dims["B"] > 1)


def test_members_are_appended_and_taken_away():
    x = torch.arange(6.0).reshape(2, 3)
    more = Appended(frozenset({"B", "N"}), frozenset({"N"}), seed=3)
    larger = more.larger(x, ("B", "N"), "x", cotangent=True)
    assert larger.shape == (3, 4)
    assert (larger[:, 3] == 0).all() and (larger[2, :3] != 0).all()
    assert torch.equal(more.former(larger, ("B", "N")), x)
    along = {"B": 1, "N": 2}
    assert torch.equal(rolled(x, ("B", "N"), along), torch.tensor([[4.0, 5.0, 3.0], [1.0, 2.0, 0.0]]))
    assert torch.equal(rolled(rolled(x, ("B", "N"), along), ("B", "N"), along, -1), x)


def contiguous_assumed(tensor):
    strides = torch.empty(tensor.shape, device="meta").stride()
    return tensor.as_strided(tensor.shape, strides)


class Reads(torch.autograd.Function):
    """softmax(x) y^2 and logsumexp(x) that read some of their tensors as if these were contiguous."""

    @staticmethod
    def forward(ctx, x, y, blind):
        ctx.blind = blind
        ctx.save_for_backward(x, y)
        x = contiguous_assumed(x) if blind == "inputs" else x
        return torch.softmax(x, -1) * y * y, torch.logsumexp(x, -1)

    @staticmethod
    def backward(ctx, dp, ds):
        x, y = ctx.saved_tensors
        dp = contiguous_assumed(dp) if ctx.blind == "cotangents" else dp
        return *gradients(x, y, dp, ds), None


@pytest.mark.parametrize("prop,blind", [(INPUTS, "inputs"), (COTANGENTS, "cotangents")])
def test_a_kernel_blind_to_strides_is_caught_in_every_layout_that_it_can_read(prop, blind):
    wrong = kernel(lambda x, y: Reads.apply(x, y, blind))
    seeing = kernel(lambda x, y: Reads.apply(x, y, "nothing"))
    found = {}
    fitting = layouts_of({"x": torch.zeros(3, 7)})
    assert set(OTHERS) - set(fitting) == {"permuted"}  # two dims have no third to exchange
    for turn, name in enumerate(fitting):
        case = replace(CASE, seed=3 * turn)
        assert judged(prop, seeing, case).status is Status.HOLDS
        found[name] = judged(prop, wrong, case).status
    assert found.pop("offset") is Status.HOLDS  # as_strided keeps the offset
    assert found.pop("broadcast") is Status.REFUSED  # PyTorch itself sees that the storage is too small
    assert set(found.values()) == {Status.VIOLATED}


def test_a_refused_layout_is_refused_and_not_violated():
    def strict(x, y):
        if not x.is_contiguous():
            raise ValueError("x has strides that are not contiguous: expected contiguous")
        return right(x, y)

    assert judged(INPUTS, kernel(strict), replace(CASE, seed=0)).status is Status.REFUSED
    assert judged(COTANGENTS, kernel(strict), replace(CASE, seed=0)).status is Status.HOLDS


def test_a_layout_may_change_the_order_of_sums():
    def order(x, y):
        p, s = right(x, y)
        return (p if x.is_contiguous() else p * (1 + 1e-7)), s

    found = judged(INPUTS, kernel(order), replace(CASE, seed=0))
    assert found.status is Status.HOLDS
    assert any(f.rule != "exact" and f.outcome is Outcome.HOLDS for f in found.findings)


def test_a_gradient_through_a_view_of_another_layout_is_right():
    def transposed(g):
        return g.t().contiguous().t()

    assert judged(COTANGENTS, kernel(lambda x, y: right(edited(x, transposed), y))).status is Status.HOLDS
