"""Families with expressions of dims, starred and literal dims, bools, offsets and an ignored index."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor, nn

import gradoracle
from gradoracle.cases.sample import build
from gradoracle.cases.stream import stream
from gradoracle.check.properties import properties_of
from gradoracle.check.setup import Setup
from gradoracle.check.worker import examiner
from gradoracle.execution.own_host import OwnHost
from gradoracle.model.family import Family
from gradoracle.model.job import Job
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status

PROPERTIES = ("forward_matches_the_oracle", "vjp_matches_the_oracle")


@gradoracle.family(dims={"T": gradoracle.sizes(1, 9), "D": gradoracle.sizes(1, 6)})
def gated(x: Float[Tensor, "*batch T 2*D"]) -> Float[Tensor, "*batch T D"]:
    a, b = x.chunk(2, -1)
    return a * torch.sigmoid(b)


@gradoracle.family
def halved(x: Float[Tensor, "B T//2"], y: Float[Tensor, "B T"]) -> Float[Tensor, "B T//2"]:
    return x * y[:, ::2]


@gradoracle.family
def crossed(x: Float[Tensor, "3 D"], y: Float[Tensor, "3 D"]) -> Float[Tensor, "3 D"]:
    return torch.stack([x[1] * y[2] - x[2] * y[1], x[2] * y[0] - x[0] * y[2], x[0] * y[1] - x[1] * y[0]])


@gradoracle.family
def masked(x: Float[Tensor, "B N"], keep: Bool[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return torch.where(keep, x * x, 0.0)


@gradoracle.family(
    dims={"T": gradoracle.sizes(1, 20), "S": gradoracle.sizes(1, 4)},
    domains={"offsets": gradoracle.IndexDomain("T", kind="cu_seqlens")},
)
def summed(x: Float[Tensor, "T D"], offsets: Int32[Tensor, "S+1"]) -> Float[Tensor, "S D"]:
    t = torch.arange(len(x))
    inside = (t >= offsets[:-1, None]) & (t < offsets[1:, None])
    return inside.to(x.dtype) @ (x * x)


@gradoracle.family(dims={"V": gradoracle.sizes(2, 9)}, domains={"target": gradoracle.IndexDomain("V", ignore=-100)})
def cross_entropy(x: Float[Tensor, "B V"], target: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    log_p = torch.log_softmax(x, -1)
    chosen = log_p.gather(1, target.clamp_min(0)[:, None])[:, 0]
    return torch.where(target == -100, 0.0, -chosen)


@gradoracle.family
def linear(x: Float[Tensor, "B 5"], weight: Float[Tensor, "3 5"], bias: Float[Tensor, "3"]) -> Float[Tensor, "B 3"]:
    return x @ weight.T + bias


def statuses(family: Family, kernel: Kernel, property_name: str, examples: int = 6) -> set[Status]:
    """The verdicts of one property on drawn cases in float32."""
    properties = {each.name: each for each in properties_of(family)}
    work = examiner(
        Setup("", None, "cpu", "auto", {}, {}),
        family,
        {kernel.name: kernel},
        properties,
        OwnHost({kernel.name: kernel}),
    )
    found = set()
    for case in stream(family, kernel, dtypes=("float32",), examples=examples):
        result: Any = work(Job(kernel.name, case, (property_name,)), lambda name, limit: None)
        found.add(result.results[0].status)
    return found


KERNELS = [
    (gated, lambda x: nn.functional.glu(x), lambda x: nn.functional.glu(x.flip(-1))),
    (halved, lambda x, y: x * y[:, ::2], lambda x, y: x * y[:, 1::2]),
    (crossed, lambda x, y: torch.linalg.cross(x, y, dim=0), lambda x, y: torch.linalg.cross(y, x, dim=0)),
    (masked, lambda x, keep: (x * x).masked_fill(~keep, 0.0), lambda x, keep: x * x),
    (
        summed,
        lambda x, offsets: torch.stack([(x[a:b] ** 2).sum(0) for a, b in pairwise(offsets)]),
        lambda x, offsets: torch.stack([(x[a : b + 1] ** 2).sum(0) for a, b in pairwise(offsets)]),
    ),
    (
        cross_entropy,
        lambda x, target: nn.functional.cross_entropy(x, target, reduction="none", ignore_index=-100),
        lambda x, target: nn.functional.cross_entropy(x, target.clamp_min(0), reduction="none"),
    ),
    (linear, nn.Linear(5, 3), None),
]


@pytest.mark.parametrize(("family", "right", "wrong"), KERNELS, ids=lambda each: getattr(each, "name", None))
def test_a_correct_kernel_holds_and_a_wrong_one_does_not(family: Family, right: Any, wrong: Any) -> None:
    for property_name in PROPERTIES:
        found = statuses(family, gradoracle.kernel(family, name="right")(right), property_name)
        assert Status.HOLDS in found <= {Status.HOLDS, Status.NOT_CHECKED}  # what underflows is not checked
    if wrong is not None:
        assert Status.VIOLATED in statuses(family, gradoracle.kernel(family, name="wrong")(wrong), PROPERTIES[0])


def test_the_tensors_have_the_dtypes_of_their_annotations() -> None:
    kernel = gradoracle.kernel(summed, name="right")(KERNELS[4][1])
    for case in stream(summed, kernel, examples=5):
        offsets = build(case, summed.signature, domains=summed.domains).inputs["offsets"]
        assert offsets.dtype is torch.int32 and offsets[0] == 0 and offsets[-1] == case.dims["T"]
        assert (offsets.diff() >= 0).all()
    keep = build(next(iter(stream(masked, gradoracle.kernel(masked, name="k")(KERNELS[3][1]), examples=1))),
                 masked.signature, domains=masked.domains).inputs["keep"]  # fmt: skip
    assert keep.dtype is torch.bool


def test_an_ignored_index_is_drawn() -> None:
    kernel = gradoracle.kernel(cross_entropy, name="right")(KERNELS[5][1])
    samples = [
        build(c, cross_entropy.signature, domains=cross_entropy.domains)
        for c in stream(cross_entropy, kernel, examples=9)
    ]
    values = torch.cat([sample.inputs["target"] for sample in samples])
    assert (values == -100).any() and (values[values != -100] >= 0).all()


def test_a_dim_that_is_halved_is_even() -> None:
    kernel = gradoracle.kernel(halved, name="right")(KERNELS[1][1])
    assert all(case.dims["T"] % 2 == 0 for case in stream(halved, kernel, examples=9))


def test_sizes_with_which_a_tensor_is_empty_are_refused() -> None:
    def definition(x: Float[Tensor, "T//4"], y: Float[Tensor, "T"]) -> Float[Tensor, "T//4"]:
        return x * y[::4]

    with pytest.raises(ValueError, match="T//4 of x is 0 where T=1; expected sizes, in dims"):
        gradoracle.family(dims={"T": gradoracle.sizes(1, 8)})(definition)


def test_a_module_whose_parameters_are_no_inputs_is_refused() -> None:
    with pytest.raises(TypeError, match="has the parameters weight, bias, which are no inputs"):
        gradoracle.kernel(masked)(nn.Linear(3, 3))
