"""Patterns: each planted error is named, and an unremarkable one is not."""

from __future__ import annotations

import math

import pytest
import torch

from gradoracle.check.diagnosis.error_location import describe
from gradoracle.check.diagnosis.likeness import likeness
from gradoracle.model.causes import CAUSES

TRUTH = torch.randn(2, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
EVERYWHERE = torch.ones_like(TRUTH, dtype=torch.bool)
AXES = ("B", "H", "T", "D")


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (TRUTH * math.log2(math.e), "log2 e"),
        (TRUTH * math.log(2), "ln 2"),
        (-TRUTH, "sign"),
        (2 * TRUTH, "counted twice"),
        (0 * TRUTH, "never written"),
        (1.03 * TRUTH, "constant ratio 1.03"),
        (TRUTH.transpose(2, 3), "dims 2 and 3 transposed"),
        (TRUTH.flip(2), "reversed along dim 2"),
        (TRUTH * math.nan, "NaN"),
    ],
)
def test_how_the_values_are_wrong(got, words):
    assert words in describe(EVERYWHERE, got, TRUTH, AXES)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ((slice(None), slice(None), slice(48, None)), "only T >= 48 (of 64)"),
        ((slice(None), 1), "only H = 1"),
        ((1,), "only B = 1"),
        ((slice(None), slice(None), slice(None), slice(1, None, 2)), "only odd D"),
        ((slice(None), slice(None), slice(16, 32)), "only T from 16 to 31 (of 64)"),
        ((slice(None), slice(None), slice(None, 16)), "only T <= 15"),
    ],
)
def test_where_the_wrong_elements_lie(index, words):
    wrong = torch.zeros_like(EVERYWHERE)
    wrong[index] = True
    got = TRUTH + wrong * torch.randn(TRUTH.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    assert words in describe(wrong, got, TRUTH, AXES)


def test_two_elements_have_a_constant_ratio_only_where_both_have_it():
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert "log2 e" in describe(truth > 0, truth * math.log2(math.e), truth)
    assert describe(truth > 0, truth * torch.tensor([0.9, 0.5]), truth) == "every element"


@pytest.mark.parametrize(
    ("values", "ratio", "cause"),
    [
        ([7.0], 2.0, ""),
        ([7.0], -1.0, ""),
        ([7.0, 7.0, 7.0, 7.0], 2.0, ""),  # a broadcast number is one number
        ([7.0, 3.0], 2.0, "ratio"),
        ([7.0, 3.0], -1.0, "sign"),
        ([7.0, 3.0], 3.0, ""),
        ([7.0, 3.0, 5.0], 3.0, "ratio"),
        ([7.0, 3.0, 5.0], 1 + 2e-7, "ratio"),
    ],
)
def test_one_number_has_no_ratio_and_two_only_one_that_has_a_name(values, ratio, cause):
    """One number has some ratio to any other."""
    truth = torch.tensor(values, dtype=torch.float64)
    found = likeness(truth > 0, ratio * truth, truth)
    assert found.cause == cause and "constant ratio 1;" not in f"{found.words};"


def test_a_truth_that_is_0_throughout_says_nothing_of_the_values():
    wrong, truth = torch.tensor([True, False]), torch.zeros(2, dtype=torch.float64)
    assert describe(wrong, wrong.double(), truth, ("N",)) == "only N = 0"
    assert describe(wrong, wrong.double(), truth + ~wrong, ("N",)) == "only N = 0; not 0 where the truth is"


def test_scattered_noise_has_no_pattern():
    generator = torch.Generator().manual_seed(6)
    wrong = torch.rand(TRUTH.shape, generator=generator) < 0.3
    got = TRUTH + wrong * torch.randn(TRUTH.shape, dtype=torch.float64, generator=generator)
    assert describe(wrong, got, TRUTH, AXES) == ""


OTHER = torch.randn(TRUTH.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
ROWS = 1 + torch.rand(2, 3, 64, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
SINGLE = TRUTH.float().double()


@pytest.mark.parametrize(
    ("got", "cause", "words"),
    [
        (-TRUTH, "sign", "the sign is wrong"),
        (-3 * TRUTH, "sign", "constant ratio -3"),
        (TRUTH * math.log2(math.e), "ratio", "log2 e"),
        (TRUTH.mT, "transpose", "dims 2 and 3 transposed"),
        (TRUTH.flip(2), "transpose", "reversed along dim 2"),
        (OTHER, "transpose", "equals the true dk"),
        (TRUTH[:, [1, 2, 0]], "shift", "every H has the values of H"),
        (TRUTH.roll(1, 2), "shift", "every T has the values of T -1"),
        (TRUTH.roll(3, 2), "slice", "every T has the values of T -3"),
        (TRUTH[:, [1, 1, 1]], "slice", "every H has the values of H = 1"),
        (TRUTH * ROWS, "sum", "a constant ratio along D"),
        (TRUTH + ROWS, "term", "the error is constant along D"),
        (TRUTH - 0.7 * OTHER, "term", "off by -0.7 times dk"),
        (TRUTH + OTHER[..., :1] * OTHER[..., :1, :], "term", "a column times a row"),
        (0 * TRUTH, "term", "0 where the truth is not"),
        (SINGLE.bfloat16().double(), "dtype", "every value is representable in bfloat16"),
        (TRUTH * (1 + 1e-3 * OTHER), "dtype", "as from rounding"),
        (TRUTH * (1 + 0.4 * OTHER), "", ""),
        (TRUTH * math.nan, "", "NaN"),
    ],
)
def test_values_point_at_a_cause_or_at_none(got, cause, words):
    found = likeness(EVERYWHERE, got, TRUTH, AXES, {"dk": OTHER, "dv": TRUTH[0]}, torch.float32)
    assert (found.cause, words in found.words) == (cause, True), found
    assert cause in {*CAUSES, ""} and (cause != "sign" or found.ratio is not None)


def test_values_are_compared_where_they_are_wrong():
    wrong = torch.zeros_like(EVERYWHERE)
    wrong[:, 1] = True
    found = likeness(wrong, torch.where(wrong, TRUTH - 0.7 * OTHER, TRUTH), TRUTH, AXES, {"dk": OTHER})
    assert found.cause == "term" and "dk" in found.words


def test_rows_that_are_alike_stand_in_no_other_place():
    truth = TRUTH[:1, :1, :1].expand(1, 1, 64, 64) * (1 + 1e-3 * TRUTH[:1, :1, :, :1])
    got = truth * (1 + 5e-3 * OTHER[:1, :1])
    assert likeness(torch.ones_like(got, dtype=torch.bool), got, truth, AXES, None, torch.float32).cause == "dtype"


def test_a_tail_of_few_elements_is_not_called_by_a_relation_that_two_numbers_may_have_by_chance():
    truth, other = TRUTH[0, 0, 0, :2], OTHER[0, 0, 0, :2]
    assert likeness(truth != 0, truth * torch.tensor([1.3, 0.2]), truth, ("N",), {"dk": other}).words == ""


def test_what_a_transposition_does_not_move_shows_none():
    truth = TRUTH[:, :2]  # two members of the batch, two heads: half of the elements are on the diagonal
    wrong = torch.zeros_like(truth, dtype=torch.bool)
    wrong[1, 1] = True
    got = torch.where(wrong, truth * (1 + 1e-3 * OTHER[:, :2]), truth)
    assert likeness(wrong, got, truth, AXES).cause == "dtype"
    even = truth + truth.transpose(0, 1)
    assert likeness(EVERYWHERE[:, :2], even * (1 + 1e-3 * OTHER[:, :2]), even, AXES).cause == "dtype"
    swapped = truth.transpose(0, 1)
    assert likeness(swapped != truth, swapped, truth, AXES).words == "the true tensor with dims 0 and 1 transposed"
