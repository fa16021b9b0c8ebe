"""State: what a kernel changes in place is compared as an output."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import gradoracle
from gradoracle.model.case import Case
from gradoracle.model.finding import Outcome
from gradoracle.model.state import returning_state
from gradoracle.model.verdict import Status
from tests.properties.judging import PROPERTIES
from tests.properties.toys import judged


@gradoracle.family(
    dims={"B": gradoracle.sizes(1, 4), "N": gradoracle.sizes(1, 5)},
    outputs=("next_mean", "y", "next_count"),
    domains={"count": gradoracle.IndexDomain(100)},
)
def centred(
    x: Float[Tensor, "B N"], mean: Float[Tensor, "N"], count: Int[Tensor, "1"]
) -> tuple[Float[Tensor, "N"], Float[Tensor, "B N"], Int[Tensor, "1"]]:
    return torch.lerp(mean, x.mean(0), 0.5).detach(), x - mean.detach(), count + 1


STATE = {"mean": "next_mean", "count": "next_count"}


def in_place(x: Tensor, mean: Tensor, count: Tensor) -> Tensor:
    y = x - mean
    mean.lerp_(x.detach().mean(0), 0.5)
    count += 1
    return y


class Centred(nn.Module):
    """Changes one buffer in place, and assigns the other anew."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        y = x - self.mean
        self.mean = torch.lerp(self.mean, x.detach().mean(0), 0.5)
        return y


@pytest.mark.parametrize("callee", [in_place, Centred()])
def test_state_is_returned_at_the_places_of_its_outputs(callee: object) -> None:
    kernel = gradoracle.kernel(centred, state=STATE)(callee)
    x, mean, count = torch.randn(3, 5), torch.ones(5, requires_grad=True).clone(), torch.tensor([7])
    next_mean, y, next_count = kernel(x, mean, count)
    torch.testing.assert_close(next_mean, torch.lerp(torch.ones(5), x.mean(0), 0.5))
    torch.testing.assert_close(y, x - 1)
    assert next_count.tolist() == [8] and not next_mean.requires_grad
    assert kernel.mutates == kernel.no_gradient == ("mean", "count")


def test_a_module_keeps_its_own_buffers() -> None:
    module = Centred()
    gradoracle.kernel(centred, state=STATE)(module)(torch.randn(3, 5), torch.ones(5), torch.tensor([7]))
    assert module.count.tolist() == [0] and not module.mean.any()


def test_too_few_and_too_many_results_are_passed_on() -> None:
    for returned, number in ((None, 2), ((), 2), ((torch.ones(1), torch.ones(1)), 4)):
        call = returning_state(lambda x, mean, count, own=returned: own, "k", centred, STATE)
        assert len(call(torch.ones(1, 1), torch.ones(1), torch.ones(1))) == number


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"average": "next_mean"},
            "kernel k: state has 'average'; expected one of the inputs of centred .*: x, mean, count",
        ),
        (
            {"mean": "after"},
            "kernel k: state has 'after'; expected one of the outputs of centred: next_mean, y, next_count",
        ),
        ({"mean": "y"}, r"kernel k: state has mean\[N\] and y\[B N\]; expected two of the same dims and dtype"),
        ({"count": "next_mean"}, r"state has count\[1\] and next_mean\[N\]"),
    ],
)
def test_state_that_does_not_fit_is_one_sentence(state: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gradoracle.kernel(centred, name="k", state=state)(in_place)


def test_a_module_without_the_buffer_is_named() -> None:
    with pytest.raises(TypeError, match="the module ReLU has no buffer mean, count; it has none"):
        gradoracle.kernel(centred, state=STATE)(nn.ReLU())


@gradoracle.family(dims={"B": gradoracle.sizes(2, 9)}, outputs=("y", "next_mean", "next_var"))
def normed(
    x: Float[Tensor, "B 5"], mean: Float[Tensor, "5"], var: Float[Tensor, "5"]
) -> tuple[Float[Tensor, "B 5"], Float[Tensor, "5"], Float[Tensor, "5"]]:
    y = (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + 1e-5)
    return y, torch.lerp(mean, x.mean(0), 0.5).detach(), torch.lerp(var, x.var(0), 0.5).detach()


class Spoiling(torch.autograd.Function):
    """The same; its backward writes to what was saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.ones(5))
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        ctx.saved_tensors[0].zero_()
        return g.clone()


@pytest.mark.parametrize(("then", "status"), [(torch.clone, Status.HOLDS), (Spoiling.apply, Status.VIOLATED)])
def test_saved_state_may_change_and_nothing_else_that_is_saved(
    then: Callable[[Tensor], Tensor], status: Status
) -> None:
    """PyTorch's batch norm saves the running statistics that it changes; in training its backward does not use them."""
    state = {"mean": "next_mean", "var": "next_var"}
    kernel = gradoracle.kernel(normed, state=state, name="saving")(
        lambda x, mean, var: then(nn.functional.batch_norm(x, mean, var, training=True, momentum=0.5))
    )
    found = judged(PROPERTIES["saved_tensors_are_unmodified"], kernel, Case("normed", {"B": 3}), normed)
    assert found.status is status and found.findings, found
    bad = [each for each in found.findings if each.outcome is Outcome.VIOLATED]
    assert ["5 of 5 elements changed during backward" in each.message for each in bad] == [True] * len(bad)
    assert len(bad) == (status is Status.VIOLATED)
