"""Patterns: where wrong elements lie, and what is true of all their values; of unremarkable ones nothing."""

from __future__ import annotations

import math

import pytest
import torch

from gradoracle.check.diagnosis.error_location import read

TRUTH = torch.randn(2, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
NOISE = torch.randn(TRUTH.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
EVERYWHERE = torch.ones_like(TRUTH, dtype=torch.bool)
LIMIT = 1e-6 * TRUTH.abs()
AXES = ("B", "H", "T", "D")


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (TRUTH * math.log2(math.e), "log2 e times the truth"),
        (TRUTH * math.log(2), "ln 2 times the truth"),
        (-TRUTH, "-1 times the truth"),
        (2 * TRUTH * (1 + 1e-7 * NOISE), "2 times the truth"),
        (TRUTH / 2, "1 / 2 times the truth"),
        (0 * TRUTH, "0 where the truth is not"),
        (TRUTH * math.nan, "NaN"),
        (TRUTH * math.inf, "infinite"),
        (TRUTH * 1.03, ""),
        (2 * TRUTH * (1 + 1e-5 * NOISE), ""),
        (torch.where(NOISE > 3.5, TRUTH, 2 * TRUTH), ""),
    ],
)
def test_what_is_true_of_all_values_is_shown(got, words):
    assert read(EVERYWHERE, got, TRUTH, AXES, LIMIT).values == words


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
    assert words in str(read(wrong, TRUTH + wrong * NOISE, TRUTH, AXES))


@pytest.mark.parametrize("values", [[7.0], [7.0, 7.0, 7.0, 7.0], [7.0, 1e-7]])
def test_one_number_is_a_multiple_of_any_other(values):
    """A broadcast number is one number, and one that is within the budget of 0 is none."""
    truth = torch.tensor(values, dtype=torch.float64)
    limit = torch.full_like(truth, 1e-6)
    assert read(truth != 0, 2 * truth, truth, (), limit).values == ""
    assert read(truth != 0, 2 * truth + truth.new_tensor([3.0] * len(values)), truth, (), limit).values == ""


def test_a_truth_that_is_0_throughout_says_nothing_of_the_values():
    wrong, truth = torch.tensor([True, False]), torch.zeros(2, dtype=torch.float64)
    silent, telling = (read(wrong, wrong.double(), true, ("N",)) for true in (truth, truth + ~wrong))
    assert str(silent.region) == str(telling.region) == str(silent) == "only N = 0"
    assert silent.values == "" and telling.values.startswith("not 0 ")


def test_without_a_budget_no_multiple_is_shown():
    assert str(read(EVERYWHERE, 2 * TRUTH, TRUTH, AXES)) == "every element"


def test_scattered_noise_has_no_pattern():
    wrong = torch.rand(TRUTH.shape, generator=torch.Generator().manual_seed(6)) < 0.3
    assert str(read(wrong, TRUTH + wrong * NOISE, TRUTH, AXES, LIMIT)) == ""
