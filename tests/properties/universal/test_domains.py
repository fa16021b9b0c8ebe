"""Whatever properties make of the integers of a case lies in their declared domains."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from gradoracle.properties.members import apart, extensible
from gradoracle.properties.universal import UNIVERSAL
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle
from gradoracle.cases.sample import build
from gradoracle.cases.stream import stream
from gradoracle.model.case import Case, Draw
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import PropertyKind
from gradoracle.model.verdict import Status
from gradoracle.oracle.truth import Oracle
from tests.domain_families import FAMILIES, faults, sizes_of
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


def outside(family: Family, seen: list[str]) -> Any:
    """The definition, which notes calls with integers outside of their domains."""

    def call(*given: Tensor, **keyword: Any) -> Any:
        positional = [spec.name for spec in family.signature.inputs if not spec.keyword]
        named = {name: tensor for name, tensor in keyword.items() if isinstance(tensor, Tensor)}
        inputs = dict(zip(positional, given, strict=True)) | named
        sizes = sizes_of(family, inputs)
        seen.extend(f"{fault} at {sizes}" for fault in faults(family, inputs, sizes))
        return family.definition(*given, **keyword)

    return call


OWN: dict[str, tuple[Family, list[Case]]] = {"packed": (packed, CASES)} | {
    name: (each, list(stream(each, Kernel(name, name, each.definition), dtypes=("float32",), examples=8, seed=5)))
    for name, each in FAMILIES.items()
}
APPLY = [
    (own, name)
    for own, (each, cases) in OWN.items()
    for name, prop in PROPERTIES.items()
    if prop.families.hold(each) and prop.applies(cases[0], Kernel(own, own, each.definition)) is None
]


@pytest.mark.parametrize(("own", "name"), APPLY)
def test_every_variant_of_a_case_lies_in_the_domains(own: str, name: str) -> None:
    seen: list[str] = []
    family, cases = OWN[own]
    kernel, prop = Kernel(own, own, outside(family, seen)), PROPERTIES[name]
    statuses = {judged(prop, kernel, case, family).status for case in cases if prop.applies(case, kernel) is None}
    assert not seen
    assert statuses <= {Status.HOLDS, Status.NOT_CHECKED}


def test_a_call_outside_of_the_domains_is_seen() -> None:
    for own, (family, cases) in OWN.items():
        seen: list[str] = []
        full = next(case for case in cases if own != "flat" or "pos" in case.draws)
        given = dict(build(full, family.signature, domains=family.domains).inputs)
        keyword = {spec.name for spec in family.signature.inputs if spec.keyword} & given.keys()
        call, named = outside(family, seen), {name: given.pop(name) for name in keyword}
        call(*given.values(), **named)
        assert not seen
        name = {"packed": "own", "tokens": "order", "ragged": "place", "flat": "pos"}[own]
        group = named if name in named else given
        group[name] = group[name] + 1
        with contextlib.suppress(IndexError, RuntimeError):  # of the definition, which reads outside
            call(*given.values(), **named)
        assert [text.split()[0] for text in seen] == [name]


@pytest.mark.parametrize(
    "name",
    [
        "batch_and_head_permutation_equivariance",
        "tail_and_padding_invariance",
        "any_layout_of_inputs_is_right_or_refused",
    ],
)
def test_variants_of_every_domain_are_judged(name: str) -> None:
    """Not all that a property could make is dropped for leaving a domain."""
    for own in FAMILIES:
        family, cases = OWN[own]
        kernel = Kernel(own, own, family.definition)
        assert Status.HOLDS in {judged(PROPERTIES[name], kernel, case, family).status for case in cases}, own


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
