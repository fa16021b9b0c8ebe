"""Patterns: each planted error is named, and an unremarkable one is not."""

from __future__ import annotations

import math

import pytest
import torch

from gradoracle.pattern import describe

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


def test_a_truth_that_is_0_throughout_says_nothing_of_the_values():
    wrong, truth = torch.tensor([True, False]), torch.zeros(2, dtype=torch.float64)
    assert describe(wrong, wrong.double(), truth, ("N",)) == "only N = 0"
    assert describe(wrong, wrong.double(), truth + ~wrong, ("N",)) == "only N = 0; not 0 where the truth is"


def test_scattered_noise_has_no_pattern():
    generator = torch.Generator().manual_seed(6)
    wrong = torch.rand(TRUTH.shape, generator=generator) < 0.3
    got = TRUTH + wrong * torch.randn(TRUTH.shape, dtype=torch.float64, generator=generator)
    assert describe(wrong, got, TRUTH, AXES) == ""
