"""What the integers of an example show: a domain that they obey and chance does not explain, and nothing else."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from gradoracle import Bits, BlockTable, Distinct, Lengths, Offsets, Permutation, Positions, Seed, Segments
from gradoracle.model.domains import Domain, Neighbours
from gradoracle.model.domains.seen import CHANCE, Seen, guesses

SIZES = {"T": 12, "D": 5, "V": 30, "E": 8}
X, W = ("T", "D"), ("V", "D")
CU = Neighbours({"cu": Offsets("T")}, {"cu": torch.tensor([0, 3, 3, 12])})
MADE = torch.Generator().manual_seed(3)
ORDER, TOP = torch.randperm(12, generator=MADE), torch.rand(12, 30, generator=MADE).topk(6)[1]
BLOCKS = torch.randperm(30, generator=MADE)[:16].reshape(2, 8)
PLACES = torch.tensor([0, 1, 2, *range(9)])
FULL = torch.tensor([2**31 - 1, -(2**31), 5, 7, 3])


def seen(values: Any, dims: tuple[str, ...] = ("T",), *floats: tuple[str, ...], beside: Neighbours = CU) -> Seen:
    values = values if isinstance(values, Tensor) else torch.tensor(values)
    own = {dim: size for dim, size in zip(dims, values.shape, strict=True) if dim.isidentifier()}
    return Seen(values, dims, SIZES | own, floats or (X,), beside)


def told(given: Seen) -> Domain | None:
    return next((each.domain for each in guesses(given) if each.chance < CHANCE), None)


@pytest.mark.parametrize(
    ("given", "domain"),
    [
        (seen(ORDER), Permutation("T")),
        (seen(torch.stack([ORDER, ORDER.flip(0)]), ("B", "T")), Permutation("T")),
        (seen(PLACES), Positions(of="cu")),
        (seen(PLACES, ("T",), X, W), Positions("V", of="cu")),
        (seen(PLACES, beside=Neighbours()), Positions()),
        (seen(PLACES, ("T",), X, W, beside=Neighbours()), Positions("V")),
        (seen([0] * 3 + [2] * 9), Segments(of="cu")),
        (seen([0] * 3 + [1] * 9), Segments(2)),
        (seen([0] * 2 + [1] * 4 + [2] * 2 + [3, 4, 4, 4]), Segments("D")),
        (seen(TOP, ("T", "K"), X, W), Distinct("V")),
        (seen(TOP.sort(-1)[0], ("T", "K"), X, W), Distinct("V", sorted=True)),
        (seen(BLOCKS, ("B", "M"), W), BlockTable("V")),
        (seen([1, 1, 2, 4, 4, 9, 11, 12], ("E",)), Offsets("T", leading=False)),
        (seen(FULL.int(), ("D",)), Bits(32)),
        (seen(torch.tensor([0, 255, 3, 200, 9], dtype=torch.uint8), ("D",)), Bits(8)),
        (seen(torch.tensor([-(2**62), 2**62, 0, 1, 2]), ("D",)), Bits(64)),
        (seen([2**40], ("1",)), Seed()),
    ],
    ids=lambda each: "" if isinstance(each, Seen) else str(each),
)
def test_what_the_values_show(given: Seen, domain: Domain) -> None:
    assert told(given) == domain


@pytest.mark.parametrize(
    ("given", "may"),
    [
        (seen(torch.arange(12)), [Positions(), Permutation("T")]),  # positions, an order, or an example of indices
        (seen([2, 0, 1], ("C",)), [Permutation("C")]),  # one example of indices in four
        (seen([[3, 4], [1, 0]], ("B", "K"), W), [BlockTable("D"), Distinct("D")]),  # D is 5
        (seen([2, 4, 6], ("C",)), [Lengths("T", total=True)]),
        (seen([5, 12], ("C",)), [Offsets("T", leading=False)]),
        (seen([2, 7, 7, 1, 0, 11, 3, 4, 4, 9, 9, 1]), []),
        (seen([-1, 7, 7, 1, 0, 11, 3, 4, 4, 9, 9, 1]), []),
        (seen([77], ("1",)), []),
        (seen(torch.tensor(3), ()), []),
        (seen([[0, 1, 0, 1]], ("1", "C")), []),  # no input of floats has as many
    ],
    ids=lambda each: "" if isinstance(each, Seen) else str(each),
)
def test_what_chance_explains_is_left_open(given: Seen, may: list[Domain]) -> None:
    assert told(given) is None and [each.domain for each in guesses(given)] == may


def test_random_indices_show_nothing() -> None:
    """In 600 examples of several shapes; 1 in 100 may."""
    made = torch.Generator().manual_seed(0)
    shapes = [((12,), ("T",)), ((3,), ("C",)), ((12, 2), ("T", "K")), ((2, 8), ("B", "E")), ((5,), ("D",))]
    found = [
        told(seen(torch.randint(0, high, shape, generator=made), dims, X, W, beside=CU))
        for _, (shape, dims), high in itertools.product(range(30), shapes, (2, 5, 12, 30))
    ]
    assert len(found) == 600 and sum(each is not None for each in found) <= 6
