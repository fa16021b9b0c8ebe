"""Whatever properties make of the integers of a case lies in their declared domains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from gradoracle.properties.members import apart, extensible
from gradoracle.properties.universal import UNIVERSAL
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle
from gradoracle.model.case import Case, Draw
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import PropertyKind
from gradoracle.model.verdict import Status
from gradoracle.oracle.truth import Oracle
from tests.properties.judging import evidence
from tests.properties.toys import judged

# which are meant to be bad
PROPERTIES = {prop.name: prop for prop in UNIVERSAL if prop.kind is not PropertyKind.ARGUMENTS}


@gradoracle.family(
    outputs=("o",),
    domains={
        "cu": gradoracle.IndexDomain("B*T", kind="cu_seqlens"),
        "own": gradoracle.IndexDomain("T", kind="cu_seqlens"),
        "length": gradoracle.IndexDomain("T", kind="length"),
        "index": gradoracle.IndexDomain("V", ignore=-1),
    },
)
def packed(
    x: Float[Tensor, "B T"],
    table: Float[Tensor, "V"],
    cu: Int[Tensor, "N+1"],
    own: Int[Tensor, "B M"],
    length: Int[Tensor, "B"],
    index: Int[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """Each token less the first of its sequence, of all tokens and of its row, below a length; and a row of a table."""
    b, t = x.shape
    flat, place = x.reshape(-1), torch.arange(b * t)
    first = cu[(place[:, None] >= cu[None, 1:]).sum(1).clamp(max=cu.shape[0] - 2)]
    o = (flat - 0.5 * flat[first.clamp(max=b * t - 1)]).reshape(b, t)
    along = torch.arange(t)
    begun = (along[None, :, None] >= own[:, None, 1:]).sum(2).clamp(max=own.shape[1] - 1)
    o = o - 0.25 * x.gather(1, own.gather(1, begun).clamp(max=t - 1))
    o = torch.where(along < length[:, None], o, 0.5 * o)
    return o + torch.where(index >= 0, table[index.clamp(min=0)], 0.0)


CASES = [
    Case("packed", {"B": b, "T": t, "V": v, "N": n, "M": m}, draws=draws, seed=3 * turn)  # each another layout
    for turn, (b, t, v, n, m, draws) in enumerate(
        [
            (2, 3, 4, 3, 3, {}),
            (3, 1, 2, 2, 4, {"x": Draw("normal", "transposed")}),
            (1, 7, 3, 4, 2, {}),
            (2, 5, 1, 1, 3, {}),
            (4, 2, 5, 2, 5, {}),
            (2, 6, 2, 3, 2, {}),
            (3, 4, 2, 2, 3, {}),
        ]
    )
]


def outside(seen: list[str]) -> Any:
    """The definition, which notes calls with integers outside of their domains."""

    def call(*given: Tensor, **options: Any) -> Tensor:
        names = [spec.name for spec in packed.signature.inputs]
        inputs: Mapping[str, Tensor] = dict(zip(names, given, strict=True))
        (b, t), (v,) = inputs["x"].shape, inputs["table"].shape
        sizes = {"B": b, "T": t, "V": v, "N": inputs["cu"].shape[0] - 1, "M": inputs["own"].shape[1]}
        for name, domain in packed.domains.items():
            if fault := domain.fault(inputs[name], sizes):
                seen.append(f"{name} {fault} at {sizes}")
        found: Tensor = packed.definition(*given)
        return found

    return call


APPLY = [
    name
    for name, prop in PROPERTIES.items()
    if prop.families.hold(packed) and prop.applies(CASES[0], Kernel("packed", "packed", packed.definition)) is None
]


@pytest.mark.parametrize("name", APPLY)
def test_every_variant_of_a_case_lies_in_the_domains(name: str) -> None:
    seen: list[str] = []
    kernel = Kernel("packed", "packed", outside(seen))
    statuses = {judged(PROPERTIES[name], kernel, case, packed).status for case in CASES}
    assert not seen
    assert statuses <= {Status.HOLDS, Status.NOT_CHECKED}


@pytest.mark.parametrize("name", ["tail_and_padding_invariance", "any_layout_of_inputs_is_right_or_refused"])
def test_variants_of_packed_sequences_are_judged(name: str) -> None:
    kernel = Kernel("packed", "packed", packed.definition)
    assert Status.HOLDS in {judged(PROPERTIES[name], kernel, case, packed).status for case in CASES}


@gradoracle.family(outputs=("o",), domains={"cu": gradoracle.IndexDomain("T", kind="cu_seqlens")})
def summed_so_far(x: Float[Tensor, "T"], cu: Int[Tensor, "N+1"]) -> Float[Tensor, "T"]:
    place = torch.arange(x.shape[0])
    sequence = (place[:, None] >= cu[None, 1:]).sum(1)
    seen = (sequence[:, None] == sequence) & (place[:, None] >= place)
    return seen.to(x.dtype) @ x


def test_tokens_of_a_sequence_are_not_apart_though_one_before_an_empty_sequence_is_alone_in_it() -> None:
    """A new last token had a cotangent, and moved the gradients of the others."""
    case = Case("summed_so_far", {"T": 4, "N": 2}, draws={"cu": Draw("lowest")}, seed=0)
    kernel = Kernel("summed_so_far", "summed_so_far", summed_so_far.definition)
    own = evidence(case, kernel, Oracle(summed_so_far))
    assert own.sample.inputs["cu"].tolist() == [0, 0, 4]
    assert extensible(own) == extensible(own, first=True) == {"T"} and not apart(own)
    assert judged(PROPERTIES["tail_and_padding_invariance"], kernel, case, summed_so_far).status is Status.HOLDS
