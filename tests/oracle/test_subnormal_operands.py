"""Products of subnormal operands: what tensor cores cut off them is within budget, and other operands get no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from forward_budget import outcome
from torch import Tensor

from gradoracle.model.contract import PRESETS
from gradoracle.model.finding import Outcome
from gradoracle.oracle.exact.trace import trace
from gradoracle.oracle.rounding.reading import Budget, budgets

_KEPT = 25  # bits that an H200 keeps below the exponent of the largest product of a block, as its alarm showed


def cut_product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y for few terms in float16, each product cut at the exponent of the largest, exponents of operands added."""
    exponents = [torch.frexp(v.abs().clamp_min(2.0**-14)).exponent - 1 for v in (x, y)]
    largest = (exponents[0][:, :, None] + exponents[1][None]).amax(1)
    unit = torch.exp2((largest - _KEPT).double())[:, None]
    return ((x[:, :, None] * y[None] / unit).trunc() * unit).sum(1)


def budget_of(x: Tensor, y: Tensor, worst: bool = False) -> Budget:
    graph = trace(lambda a, b: (a @ b,), x, y)
    return budgets(graph, (x, y), PRESETS["fp16"], worst=worst, output_dtypes=["float32"])[0]


def halves(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half().double()


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def test_what_alignment_cuts_off_is_within_budget() -> None:
    """The alarm of an H200: -5.95e-5 * 6.8e-4 + 9.5e-7 * 0.26 was 21 sigma out; both left operands are subnormal."""
    x = torch.tensor([[-5.9485435485839844e-05, 9.5367431640625e-07]], dtype=torch.float64)
    y = torch.tensor([[0.0006823539733886719], [0.26416015625]], dtype=torch.float64)
    budget = budget_of(x, y, worst=True)
    assert budget.worst is not None and float(budget.worst) < 1e-4 * float(budget.value)
    assert float(budget.sigma) > 2.84e-13 and float(budget.worst) > 2.84e-13
    x, y = halves(40, 3, seed=1) * 2.0**-18, halves(3, 30, seed=2)
    x = (x * 2.0**24).round() * 2.0**-24
    budget, got = budget_of(x, y), cut_product(x, y)
    ratio = ((got - budget.value).abs() / budget.sigma).max()
    assert 0.1 < float(ratio) < 4
    assert outcome(got, budget)[0] is Outcome.HOLDS
    assert outcome(got * (1 + 2.0**-6), budget)[0] is Outcome.VIOLATED


def test_normal_operands_get_no_more() -> None:
    x, y = halves(40, 3, seed=1), halves(3, 30, seed=2)
    budget = budget_of(x, y)
    assert float((budget.sigma / budget.value.abs()).median()) < 2.0**-22
    low = budget_of(x * 2.0**-20, y)
    assert float((low.sigma / low.value.abs()).median()) > 2.0**-19


@pytest.mark.parametrize("flush", [False, True])
def test_each_product_below_the_smallest_normal_number_is_rounded(flush: bool) -> None:
    """On an H200 nine products of 1e-45 were two spacings off, 11.5 times what a single rounding explains."""
    spacing = 2.0**-149
    x = torch.full((1, 9), 0.3, dtype=torch.float32).double()
    y = (torch.randint(-3, 4, (9, 400), generator=torch.Generator().manual_seed(0)) * spacing).double()
    graph = trace(lambda a, b: (a @ b,), x, y)
    contract = replace(PRESETS["ieee32"], flush_to_zero=flush)
    budget = budgets(graph, (x, y), contract, worst=True, output_dtypes=["float32"])[0]
    got, largest = torch.zeros(1, 400, dtype=torch.float64), 9 * spacing / 2
    for i in range(9):  # products and sums on the grid, as an FMA leaves them
        got = ((got + x[:, i : i + 1] * y[i]) / spacing).round() * spacing
    error = (got - budget.value).abs()
    assert 1.9 < float(error.max() / spacing) < 4.5
    assert (0.1 if flush else 0.5) < float((error / budget.sigma).square().mean().sqrt()) < 1.2
    assert budget.worst is not None and bool((error < budget.worst).all())
    assert flush or float(budget.worst.max()) < 1.2 * largest
    assert outcome(got, budget, budget.floor)[0] is not Outcome.VIOLATED
    assert outcome(got + 300 * spacing, budget, budget.floor)[0] is Outcome.VIOLATED


def parts(x: Tensor, count: int = 3) -> Tensor:
    """float32 numbers as the sum of some bfloat16 parts."""
    left = x.float()
    for _ in range(count):
        left = left - left.bfloat16().float()
    return x - left.double()


@pytest.mark.parametrize("worst", [False, True])
def test_three_bfloat16_parts_hold_less_of_tiny_operands(worst: bool) -> None:
    x, y = random(60, 5, seed=1) * 2.0**-122, random(5, 40, seed=2) * 2.0**60
    own = replace(PRESETS["bf16x6"], flush_to_zero=False)
    graph = trace(lambda a, b: (a @ b,), x, y)
    found = [budgets(graph, (x, y), each, worst=worst)[0] for each in (own, replace(own, operand="float32"))]
    got = parts(x) @ parts(y)
    ratio = (got - found[0].value).abs() / found[0].sigma
    assert 0.3 < float(ratio.square().mean().sqrt()) < 1.2
    assert float(((got - found[1].value).abs() / found[1].sigma).median()) > 50  # as float32 holds them
    assert outcome(got, found[0])[0] is Outcome.HOLDS
    assert outcome(parts(x, 1) @ parts(y), found[0])[0] is Outcome.VIOLATED


def test_bfloat16_parts_hold_other_operands_whole() -> None:
    x, y = random(60, 5, seed=1) * 2.0**-40, random(5, 40, seed=2)
    graph = trace(lambda a, b: (a @ b,), x, y)
    one, other = (
        budgets(graph, (x, y), replace(PRESETS["bf16x6"], operand=operand))[0] for operand in ("bf16x6", "float32")
    )
    assert torch.equal(parts(x), x) and torch.equal(one.sigma, other.sigma)


def test_a_sum_of_what_the_format_holds_is_exact_below_its_smallest_normal_number() -> None:
    x = (torch.randint(-9, 10, (3, 50), generator=torch.Generator().manual_seed(0)) * 2.0**-149).double()
    contract = replace(PRESETS["ieee32"], flush_to_zero=False)
    budget = budgets(trace(lambda a: (a.sum(1),), x), (x,), contract, output_dtypes=["float32"])[0]
    assert float(budget.sigma.max()) < 2.0**-149
