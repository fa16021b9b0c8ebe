"""Adverse roundings: a correct kernel that meets a rare number is within budget, and values apart get none wider."""

from __future__ import annotations

import math

import torch
from forward_budget import budget_of, outcome
from torch import Tensor

from gradoracle.model.finding import Outcome
from gradoracle.oracle.rounding.adversarial import leaning, splitting
from gradoracle.oracle.rounding.probes import SPLIT

NUMBERS = torch.exp2(torch.linspace(-1, 0, 300, dtype=torch.float64))


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rounded(x: Tensor, number: Tensor) -> Tensor:
    """``x`` as a kernel holds it that multiplies by ``number`` before it rounds to bfloat16, and divides later."""
    return (x * number).float().bfloat16().double() / number


def test_nearly_equal_values_that_straddle_two_neighbours() -> None:
    """Exponentials of 2e-5: where the middle of two bfloat16s falls among them, errors have the signs of k."""
    further = 0
    for seed in range(8):
        q, k = normal(1, 2, seed=seed) * 0.02, (normal(257, 2, seed=100 + seed) * 1e-3).bfloat16().double()
        budget = budget_of(lambda q, k: torch.exp(q @ k.mT) @ k, q, k, preset="bf16")
        p = torch.exp(q @ k.mT)
        middles = 0.5 + 2.0**-9 + torch.arange(0, 128, 9).double() / 256
        numbers = (middles / p.quantile(torch.linspace(0.1, 0.9, 9).double())[:, None]).flatten()
        error = torch.stack([rounded(p, number) @ k - budget.value for number in numbers]).abs().amax(0)
        assert (error <= 8 * budget.sigma).all()
        others = torch.cat([budget.errors[:SPLIT], budget.errors[SPLIT + 1 :]])
        plain = torch.maximum(others.square().sum(0).div(16).sqrt(), budget.independent)
        further += int((error > 8 * plain).any())
        assert outcome(budget.value + 3 * error.amax(), budget) == (Outcome.VIOLATED, "local")
    assert further, "the cases need no such probe"


def test_few_significands_whose_errors_lean() -> None:
    values = normal(1500, seed=1).bfloat16().double()
    leans = []
    for number in NUMBERS:
        budget = budget_of(lambda x, f: x * f, values, number.float().double(), preset="bf16")
        right = (values * number.float().double()).float().bfloat16().double()
        assert outcome(right, budget)[0] is Outcome.HOLDS, float(number)
        leans.append(abs(float(((right - budget.value) / budget.value).mean())))
    assert max(leans) > 8 * sorted(leans)[len(leans) // 2], "no number leans more than others"
    found = outcome((right * (1 + 2.0**-7)).bfloat16().double(), budget)
    assert found[0] is Outcome.VIOLATED


def test_values_apart_have_the_budget_that_they_had() -> None:
    values = normal(40, 257, seed=2)
    weights = torch.ones_like(values)
    assert leaning(values, 8, weights) is None and leaning(values, 11, weights) is None
    k = normal(257, 3, seed=3).bfloat16().double()
    budget = budget_of(lambda x, k: torch.tanh(x) @ k, values, k, preset="bf16")
    others = torch.cat([budget.errors[:SPLIT], budget.errors[SPLIT + 1 :]])
    plain = torch.maximum(others.square().sum(0).div(16).sqrt(), budget.independent)
    assert float((budget.sigma / plain).median()) == 1.0 and float((budget.sigma / plain).mean()) < 1.02


def test_what_leans_is_found_whatever_the_order_of_magnitude() -> None:
    values = normal(500, seed=4).bfloat16().double() * torch.exp2(torch.randint(-20, 20, (500,)).double())
    factor = leaning(values * 1.1, 8, torch.ones_like(values))
    assert factor is not None and 0.5 < float(factor) <= 1
    errors = (rounded(values * 1.1, factor) / (values * 1.1) - 1) * 2.0**8
    assert abs(float(errors.mean())) > 5 / math.sqrt(500)
    none = torch.tensor([0.0, math.inf, math.nan]).double()
    assert leaning(none, 8, torch.ones_like(none)) is None


def test_the_median_of_a_group_comes_between_two_neighbours() -> None:
    x = torch.stack([normal(101, seed=5), 1e-30 + 1e-34 * normal(101, seed=6)])
    x[0, :20] = 0.0
    factors = splitting(x, 8, -1)
    assert factors.shape == (2, 1) and (factors - 1).abs().max() < 2.0**-8
    median = torch.stack([row[row != 0].abs().median() for row in x]) * factors[:, 0]
    fraction = torch.frexp(median).mantissa * 2.0**8
    torch.testing.assert_close(fraction - fraction.floor(), torch.full((2,), 0.5, dtype=torch.float64))
    nothing = splitting(torch.zeros(3, 4, dtype=torch.float64), 8, 0)
    assert nothing.isfinite().all()
