"""Constraints: every case that is drawn, shrunk or read keeps them; a family that names what it has not is refused."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle
from gradoracle.cases.case_space import case_space
from gradoracle.cases.coverage import goals_of, wanted_goals
from gradoracle.cases.sample import build
from gradoracle.cases.shrinking import shrink
from gradoracle.cases.stream import stream
from gradoracle.model.case import Case, Draw
from gradoracle.model.dims import choices, sizes
from gradoracle.model.domains import IndexDomain
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel
from gradoracle.model.signature import Constraints

SIZES = {"H": sizes(1, 8), "G": sizes(1, 8), "T": sizes(1, 40, large=131_072)}


@gradoracle.family(
    dims=SIZES, domains={"a": IndexDomain(3), "b": IndexDomain(3)}, divides={"G": "H"}, together=[("a", "b")]
)
def grouped(
    q: Float[Tensor, "H T"],
    k: Float[Tensor, "G T"],
    *,
    a: Int[Tensor, "T"] | None = None,
    b: Int[Tensor, "T"] | None = None,
) -> Float[Tensor, "H T"]:
    heads = q.shape[0] // k.shape[0]
    product = q * k.repeat_interleave(heads, 0)
    return product if a is None else torch.where(a == b, product, 0.0)


KERNEL = Kernel("grouped", "grouped", grouped.definition)


def cases(examples: int = 126) -> list[Case]:
    return list(stream(grouped, KERNEL, dtypes=("float32",), examples=examples))


def test_every_case_of_a_stream_keeps_them_and_every_goal_is_met() -> None:
    drawn = cases()
    assert all(case.dims["H"] % case.dims["G"] == 0 for case in drawn)
    assert all(("a" in case.draws) is ("b" in case.draws) for case in drawn)
    met = {name for case in drawn for name in goals_of(grouped, KERNEL, case)}
    expected = wanted_goals(grouped, KERNEL, ("float32",), len(drawn))
    assert set(expected) <= met
    assert "H > G" in expected and "H < G" not in met | set(expected)
    assert {"G has a tail", "T > 100 000", "a given", "a absent", "b given"} <= set(expected)
    for case in drawn[:20]:
        build(case, grouped.signature, domains=grouped.domains)


def test_what_is_shrunk_keeps_them() -> None:
    seen: list[Case] = []

    def violates(case: Case) -> bool:
        seen.append(case)
        return case.dims["G"] >= 2 and "a" in case.draws

    (first, *_) = (case for case in cases() if case.dims["G"] > 3 and "a" in case.draws and case.dims["T"] < 50)
    smallest, _ = shrink(grouped, KERNEL, first, violates, seconds=20.0)
    assert (smallest.dims["G"], smallest.dims["H"] % 2, smallest.dims["T"]) == (2, 0, 1)
    assert {"a", "b"} <= smallest.draws.keys()
    assert len(seen) > 3 and not any(grouped.signature.constraints.unmet(c.dims, c.draws) for c in seen)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (Case("grouped", {"H": 3, "G": 2, "T": 1}), "the case gives G=2 and H=3; expected a G that divides H"),
        (
            Case("grouped", {"H": 2, "G": 2, "T": 1}).with_draws(a=Draw("index")),
            "the case gives a and not b; expected all of them or none",
        ),
    ],
)
def test_a_case_line_that_breaks_them_is_refused(case: Case, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build(case, grouped.signature, domains=grouped.domains)
    build(case.with_dims(H=4).with_draws(b=Draw("index")) if case.draws else case.with_dims(H=4),
          grouped.signature, domains=grouped.domains)  # fmt: skip


def test_a_size_gives_way_downwards_unless_it_is_fixed() -> None:
    constraints, allowed = Constraints({"G": "H"}), {"G": sizes(1, 8), "H": sizes(1, 8)}
    assert constraints.settled({"G": 4, "H": 6}, allowed) == {"G": 3, "H": 6}
    assert constraints.settled({"G": 4, "H": 6}, allowed, {"G"}) == {"G": 4, "H": 4}
    assert constraints.settled({"G": 4, "H": 6}, allowed, {"G", "H"}) == {"G": 3, "H": 6}
    assert constraints.settled({"G": 5, "H": 3}, allowed) == {"G": 3, "H": 3}
    assert constraints.settled({"G": 2, "H": 1}, {"G": choices(2), "H": sizes(1, 8)}) == {"G": 2, "H": 2}
    with pytest.raises(ValueError, match=r"no size of G \(5\) divides a size of H \(1 to 4\)"):
        constraints.settled({"G": 5, "H": 4}, {"G": choices(5), "H": sizes(1, 4)})


def test_dims_that_cannot_fit_are_said_before_anything_is_drawn() -> None:
    with pytest.raises(ValueError, match="dims of grouped: no size of G"):
        case_space(grouped, KERNEL, dims={"G": choices(5), "H": choices(8)})
    assert case_space(grouped, KERNEL, dims={"G": choices(4), "H": choices(8)}).sizes["G"] == choices(4)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"divides": {"G": "K"}}, "divides names K; expected some of its dims"),
        ({"together": [("q", "k")]}, "together names q, k; it has no optional inputs"),
    ],
)
def test_a_family_that_names_what_it_has_not_is_refused(declared: dict[str, object], said: str) -> None:
    def plain(q: Float[Tensor, "H T"], k: Float[Tensor, "G T"]) -> Float[Tensor, "H T"]:
        return q

    with pytest.raises(ValueError, match=said):
        gradoracle.family(**declared)(plain)
    made = gradoracle.family(divides={"G": "H"})(plain)
    assert isinstance(made, Family) and made.signature.constraints.divides == {"G": "H"}
