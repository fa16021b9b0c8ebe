"""Cases of families with an input of every domain: legal ones, of every recipe, that shrink to the simplest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradoracle.cases.coverage import goals_of, wanted_goals
from gradoracle.cases.hypothesis_strategy import strategy
from gradoracle.cases.sample import build
from gradoracle.cases.shrinking import shrink
from gradoracle.cases.stream import stream
from gradoracle.model.case import Case, Draw, parse
from gradoracle.model.dims import choices
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel
from tests.domain_families import FAMILIES, faults, sizes_of

KERNELS = {name: Kernel(name, name, family.definition) for name, family in FAMILIES.items()}


def legal(family: Family, case: Case) -> None:
    sample = build(case, family.signature, domains=family.domains)
    assert faults(family, sample.inputs, case.dims) == [], case
    assert {**case.dims, **sizes_of(family, sample.inputs)} == case.dims
    assert len({name in sample.inputs for name in ("cu", "pos")}) == 1 or family.name == "ragged"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_case_of_a_stream_is_legal_and_every_recipe_occurs(name: str) -> None:
    family, kernel = FAMILIES[name], KERNELS[name]
    cases = stream(family, kernel, examples=252)
    for case in cases:
        legal(family, case)
        assert parse(case.line())[2] == case
    met = {goal for case in cases for goal in goals_of(family, kernel, case)}
    wanted = set(wanted_goals(family, kernel, family.dtypes, len(cases)))
    assert {f"recipe {text}" for domain in family.domains.values() for text in domain.recipes} <= wanted <= met


@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
def test_every_case_of_a_strategy_is_legal(name: str, data: st.DataObject) -> None:
    legal(FAMILIES[name], data.draw(strategy(FAMILIES[name], KERNELS[name])))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_case_shrinks_to_the_simplest_values(name: str) -> None:
    """Sequences alike, the identity, nothing masked, no bit set: what is then left of a failure is not in these."""
    family, kernel = FAMILIES[name], KERNELS[name]
    optional = {spec.name for spec in family.signature.inputs if spec.optional}
    own = ((name, domain.simplest) for name, domain in family.domains.items() if name not in optional)
    simplest = {name: Draw(recipe) for name, recipe in own if recipe != "index"}
    for case in stream(family, kernel, examples=20, seed=3)[-3:]:
        least, why = shrink(family, kernel, case, lambda c: True, seconds=60)
        assert not why and dict(least.draws) == simplest and set(least.dims.values()) == {1} and least.seed == 0
        legal(family, least)


def test_what_a_failure_needs_stays() -> None:
    """A kernel that fails on an empty sequence, and one that fails where the order is no identity."""
    family, kernel = FAMILIES["tokens"], KERNELS["tokens"]

    def is_of_empty_sequence(case: Case) -> bool:
        cu = build(case, family.signature, domains=family.domains).inputs["cu"]
        return bool((cu.diff() == 0).any())

    def is_moved(case: Case) -> bool:
        order = build(case, family.signature, domains=family.domains).inputs["order"].tolist()
        return order != sorted(order)

    case = Case("tokens", {"T": 23, "D": 3, "N": 5, "E": 2}, draws={"cu": Draw("empty", "strided")}, seed=8)
    assert is_of_empty_sequence(case) and is_moved(case)
    least, _ = shrink(family, kernel, case, is_of_empty_sequence, seconds=60)
    assert least.dims["T"] == 1 and least.dims["N"] == 2 and least.draws["cu"] == Draw("equal")
    least, _ = shrink(family, kernel, case, is_moved, seconds=60)
    assert least.dims["T"] in (2, 3) and "order" not in least.draws and least.draws["cu"] == Draw("equal")


def test_an_optional_input_is_there_with_those_that_it_is_read_by_while_it_shrinks() -> None:
    family, kernel = FAMILIES["flat"], KERNELS["flat"]
    given = {"cu": Draw("tails", "sliced"), "seq": Draw("index", "offset"), "pos": Draw("index")}
    case = Case("flat", {"B": 2, "T": 7, "N": 3, "M": 20}, draws=given, seed=4)
    least, _ = shrink(family, kernel, case, lambda c: "pos" in c.draws, seconds=60)
    assert dict(least.draws) == {"cu": Draw("equal"), "seq": Draw("index"), "pos": Draw("index")}
    legal(family, least)


def test_sizes_that_leave_too_few_values_are_one_sentence() -> None:
    family, kernel = FAMILIES["ragged"], KERNELS["ragged"]
    with pytest.raises(ValueError, match=r"dims of ragged: no sizes have K of at most V"):
        stream(family, kernel, dims={"K": choices(5), "V": choices(2, 3)}, examples=3)
    case = stream(family, kernel, dims={"K": choices(5)}, examples=3)[0]
    assert case.dims["V"] >= 5, "the other dim moves where one is fixed"
    with pytest.raises(ValueError, match=r"the case gives K=5 and V=2; expected K of at most V"):
        build(case.with_dims(V=2), family.signature, domains=family.domains)


def test_rows_that_repeat_are_contiguous_once_there_is_one() -> None:
    """Along a row no value may repeat, and of one row a stride of 0 would be along it."""
    family, kernel = FAMILIES["ragged"], KERNELS["ragged"]
    dims = {"B": 3, "T": 5, "V": 4, "K": 3, "M": 2, "P": 9, "S": 2}
    case = Case("ragged", dims, draws={"best": Draw("index", "expanded")}, seed=4)
    built: list[Case] = []

    def violates(case: Case) -> bool:
        legal(family, case)
        built.append(case)
        return case.dims["K"] > 1 and case.draws.get("best", Draw()).layout == "expanded"

    legal(family, case)
    least, _ = shrink(family, kernel, case, violates, seconds=60)
    assert least.dims["B"] == 2 and least.draws["best"] == Draw("index", "expanded")
    assert any(each.dims["B"] == 1 for each in built)
