"""State: what a kernel changes in place is compared as an output."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import gradoracle
from gradoracle.model.state import returning_state


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
