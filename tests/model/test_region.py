"""Region: the sentence about each way in which wrong elements lie, and what cases of other sizes have in common."""

from __future__ import annotations

import pytest
import torch

from gradoracle.check.diagnosis.error_location import region
from gradoracle.model.finding import NOWHERE, Extent, Region


@pytest.mark.parametrize(
    ("indices", "size", "extent", "words"),
    [
        ([3], 9, Extent.ONE, "only T = 3"),
        ([8], 9, Extent.TAIL, "only T = 8 (the last)"),
        ([1], 2, Extent.ONE, "only T = 1"),
        ([6, 7, 8], 9, Extent.TAIL, "only T >= 6 (of 9)"),
        ([0, 1], 9, Extent.HEAD, "only T <= 1 (of 9)"),
        ([2, 3, 4], 9, Extent.RANGE, "only T from 2 to 4 (of 9)"),
        ([1, 3, 7], 9, Extent.ALTERNATE, "only odd T"),
        ([0, 4, 6], 9, Extent.ALTERNATE, "only even T"),
        ([0, 1, 5], 9, Extent.SCATTERED, "3 of 9 along T"),
    ],
)
def test_each_extent_has_its_sentence(indices: list[int], size: int, extent: Extent, words: str) -> None:
    wrong = torch.zeros(2, size, dtype=torch.bool)
    wrong[:, indices] = True
    found = region(wrong, "HT")
    (span,) = found.spans
    assert (span.axis, span.extent, span.first, span.last) == ("T", extent, indices[0], indices[-1])
    assert (span.count, span.size) == (len(indices), size) and str(found) == words


def test_all_none_and_most_in_no_order_have_no_span() -> None:
    wrong = torch.ones(9, dtype=torch.bool)
    assert region(wrong, "T") == Region(whole=True) and str(region(wrong, "T")) == "every element"
    assert region(~wrong, "T") == NOWHERE and str(NOWHERE) == ""
    wrong[4] = False
    assert region(wrong, "T") == NOWHERE


def test_tails_of_cases_of_other_sizes_have_one_shape() -> None:
    short, long = torch.zeros(9, dtype=torch.bool), torch.zeros(100, dtype=torch.bool)
    short[8], long[96:] = True, True
    assert region(short, "T").shape == region(long, "T").shape == ("T tail",)
    assert region(long, "N").shape != region(long, "T").shape
