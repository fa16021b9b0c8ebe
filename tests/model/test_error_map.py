"""The map of a wrong tensor's errors: where they are, how large, and what is hidden by no cell."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from gradoracle.check import acceptance
from gradoracle.check.acceptance import Allowance, exactly, judge
from gradoracle.model.error_map import BEYOND, CELLS, PAIRS, UNKNOWN, WITHIN, errormap, sigmas
from gradoracle.model.finding import Outcome


def test_it_lies_over_the_two_last_dims_that_are_larger_than_one() -> None:
    size = torch.zeros(2, 1, 65, 1, 8)
    size[1, 0, 64] = 100.0
    seen = errormap(size, axes=("B", "H", "T", "G", "D"))
    assert seen is not None
    assert (seen.axes, seen.shape, seen.cell, seen.over) == (("T", "D"), (65, 8), (1, 1), ("B",))
    assert seen.rows == (WITHIN * 8,) * 64 + ("7" * 8,)


@pytest.mark.parametrize(
    ("shape", "axes", "rows", "wide"), [((5,), ("", "N"), 1, 5), ((1, 1), ("", "N"), 1, 1), ((3, 1), ("", "B"), 1, 3)]
)
def test_a_tensor_of_one_dim_is_a_strip(shape: tuple[int, ...], axes: tuple[str, str], rows: int, wide: int) -> None:
    seen = errormap(torch.ones(shape), axes=("B", "N") if len(shape) == 2 else ("N",))
    assert seen is not None and seen.axes == axes and len(seen.rows) == rows and set(map(len, seen.rows)) == {wide}


@pytest.mark.parametrize("shape", [(), (0,), (4, 0)])
def test_there_is_none_of_a_tensor_without_elements_or_dims(shape: tuple[int, ...]) -> None:
    assert errormap(torch.zeros(shape)) is None


@pytest.mark.parametrize("size", [1, 95, 96, 97, 1000, 100_001])
def test_no_element_is_lost_where_cells_hold_several(size: int) -> None:
    for place in {0, size // 2, size - 1}:
        errors = torch.zeros(size, 2)
        errors[place, 1] = 3.0
        seen = errormap(errors, axes=("T", "D"))
        assert seen is not None and len(seen.rows) <= CELLS
        if size == 1:
            assert seen.rows == (".2",)
            continue
        (row,) = [number for number, row in enumerate(seen.rows) if row != ".."]
        assert row == place // seen.cell[0] and seen.rows[row] == ".2"


@pytest.mark.parametrize("size", [0.0, 1.0, 1.01, 2.0, 2.1, 8.0, 8.1, 1e3, 1e9, 1e30])
def test_a_level_holds_its_error_and_is_at_most_twice_it(size: float) -> None:
    seen = errormap(torch.tensor([size], dtype=torch.float64))
    assert seen is not None
    told = sigmas(seen.rows[0])
    assert size <= told < 2 * max(size, 1.0) or told == 2.0**35


def test_what_is_lost_or_not_compared_is_marked() -> None:
    size = torch.tensor([[math.inf, math.nan, 0.5], [3.0, 3.0, 3.0]])
    compared = torch.tensor([[True, True, True], [False, False, True]])
    seen = errormap(size, compared)
    assert seen is not None and seen.rows == (BEYOND * 2 + WITHIN, UNKNOWN * 2 + "2")
    assert sigmas(BEYOND) == math.inf and math.isnan(sigmas(UNKNOWN))


def test_pairs_hold_the_worst_and_the_whole_range_of_the_truth() -> None:
    truth = torch.linspace(-5, 5, 1000, dtype=torch.float64)
    got = truth.clone()
    got[500] += 1
    seen = errormap((got - truth).abs(), got=got, truth=truth)
    assert seen is not None and len(seen.pairs) <= PAIRS
    assert (float(truth[500]), float(got[500])) in seen.pairs
    assert {-5.0, 5.0} <= {true for true, _ in seen.pairs}


def test_tiles_are_those_of_its_own_dims() -> None:
    seen = errormap(torch.ones(4, 4), axes=("T", "D"))
    assert seen is not None and seen.tiled({"T": 64, "M": 32}) == (64, 0)


def judged(got: torch.Tensor, truth: torch.Tensor) -> object:
    sigma = torch.full_like(truth, 1e-3)
    allowance = Allowance(sigma, 1e-3 * torch.randn(16, *truth.shape, dtype=torch.float64))
    return judge("o", got, truth, allowance, continuous=True, axes=("T", "D"))


def test_a_wrong_tensor_has_one_and_a_correct_one_has_none() -> None:
    truth = torch.randn(40, 8, dtype=torch.float64)
    found = judged(truth, truth)
    assert found.outcome is Outcome.HOLDS and found.map is None
    tail = truth.clone()
    tail[32:] += 1.0
    found = judged(tail, truth)
    assert found.outcome is Outcome.VIOLATED and found.map is not None
    assert [set(row) for row in found.map.rows] == [{WITHIN}] * 32 + [{"a"}] * 8
    lost = truth.clone()
    lost[3, 5] = math.nan
    found = judged(lost, truth)
    assert found.map is not None and [row for row in found.map.rows if row != WITHIN * 8] == [".....#.."]


def test_a_fact_about_elements_has_one_and_a_fact_about_none_has_not() -> None:
    wrong = torch.zeros(3, 4, dtype=torch.bool)
    wrong[2] = True
    found = exactly("o", wrong, "is not written", axes=("T", "D"))
    assert found.map is not None and found.map.rows == ("....", "....", "####")
    assert exactly("o", True, "differs").map is None and exactly("o", ~wrong & wrong, "no").map is None


def test_a_picture_that_cannot_be_made_leaves_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MemoryError("no memory for pictures")

    monkeypatch.setenv("GRADORACLE_STRICT", "0")
    monkeypatch.setattr(acceptance, "errormap", fails)
    truth = torch.randn(40, 8, dtype=torch.float64)
    found = judged(truth + 1.0, truth)
    assert found.outcome is Outcome.VIOLATED and found.map is None
    assert exactly("o", torch.ones(3, dtype=torch.bool), "is not written").outcome is Outcome.VIOLATED


@pytest.mark.parametrize("size", [1, 2, 63, 4095, 4096, 4097, 2**24 + 384])  # float32 cannot tell places past 2^24
def test_pairs_of_any_size_reach_both_ends_of_the_truth(size: int) -> None:
    truth = torch.zeros(size, dtype=torch.float64)
    truth[0], truth[-1] = -1.0, 1.0
    seen = errormap(torch.zeros(size), got=truth, truth=truth)
    assert seen is not None and 1 <= len(seen.pairs) <= PAIRS
    assert {float(truth[0]), float(truth[-1])} <= {true for true, _ in seen.pairs}


def test_edges_lie_between_tiles_where_they_can_be_told_apart() -> None:
    seen = errormap(torch.ones(200, 130), axes=("T", "D"))
    assert seen is not None
    seen = replace(seen, tiles=(64, 64))
    assert seen.edges(0) == [64, 128, 192] and seen.edges(1) == [64, 128]
    assert replace(seen, tiles=(200, 0)).edges(0) == [] and replace(seen, tiles=(200, 0)).edges(1) == []
    assert replace(seen, tiles=(1, 1)).edges(0) == []
