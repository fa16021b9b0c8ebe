"""Masks that are finite numbers: what they hide has no weight, and its rounding reaches nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradoracle.model.contract import PRESETS, widened
from gradoracle.model.derivative import Derivative, program
from gradoracle.oracle.exact.trace import trace
from gradoracle.oracle.rounding.reading import Budget, budgets

NUMBERS = (-1e4, -1e6, -1e9, float(torch.finfo(torch.float32).min))
FUTURE = torch.ones(6, 6, dtype=torch.bool).triu(1)
CONTRACTS = {"ieee32": PRESETS["ieee32"], "widened": widened(PRESETS["ieee32"])}

Masked = Callable[[Tensor, Tensor, float], Tensor]
FORMS: dict[str, Masked] = {
    "masked_fill": lambda s, hidden, number: s.masked_fill(hidden, number),
    "where": lambda s, hidden, number: torch.where(hidden, number, s),
    "added": lambda s, hidden, number: s + (1 - (~hidden).to(s.dtype)) * number,
    "mixed": lambda s, hidden, number: s * ~hidden + (1 - (~hidden).to(s.dtype)) * number,
}
ROWS = {
    "softmax": lambda s: torch.softmax(s, -1),
    "log_softmax": lambda s: torch.log_softmax(s, -1).exp(),
    "by hand": lambda s: (p := torch.exp(s - s.amax(-1, keepdim=True))) / p.sum(-1, keepdim=True),
    "log-sum-exp": lambda s: torch.exp(s - torch.logsumexp(s, -1, keepdim=True)),
}


def inputs() -> list[Tensor]:
    """q, k, v and the cotangent of o."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 6, 4, generator=generator).double() for _ in range(4)]


def attention(
    form: Masked, hidden: Tensor, number: float, rows: Callable[[Tensor], Tensor] = ROWS["softmax"]
) -> object:
    return lambda q, k, v: rows(form(q @ k.mT * 0.5, hidden, number)) @ v


def read(function: object, contract: str) -> list[Budget]:
    graph = trace(program(function, Derivative.VJP, 3), *inputs())  # type: ignore[arg-type]
    return budgets(graph, inputs(), CONTRACTS[contract], worst=True)


def grown(found: Tensor, expected: Tensor) -> float:
    """The median ratio; nowhere above 3, as probes of another graph differ."""
    shown = expected > 0
    ratio = found[shown] / expected[shown]
    assert float(ratio.max()) < 3 and not found[~shown].any()
    return float(ratio.median())


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("form", FORMS)
def test_a_finite_mask_has_the_budget_of_an_infinite_one(form: str, rows: str, contract: str) -> None:
    infinite = read(attention(FORMS["where"], FUTURE, -torch.inf, ROWS[rows]), contract)
    for number in NUMBERS:
        for found, expected in zip(
            read(attention(FORMS[form], FUTURE, number, ROWS[rows]), contract), infinite, strict=True
        ):
            assert found.worst is not None and expected.worst is not None
            assert grown(found.sigma, expected.sigma) < 1.2, number
            assert grown(found.worst, expected.worst) < 1.2, number
            assert found.overflow is None, number  # or a kernel's NaN would be excused


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("form", FORMS)
def test_eager_is_within_it_and_a_key_too_many_is_not(form: str, number: float) -> None:
    found = read(attention(FORMS[form], FUTURE, number), "ieee32")
    leaking = torch.ones(6, 6, dtype=torch.bool).triu(2)
    for hidden, holds in ((FUTURE, True), (leaking, False)):
        run = program(attention(FORMS[form], hidden, number), Derivative.VJP, 3)  # type: ignore[arg-type]
        got = run(*(x.float() for x in inputs()))
        errors = [(x.double() - budget.value).abs() for x, budget in zip(got, found, strict=True)]
        for error, budget in zip(errors, found, strict=True):
            assert bool((error <= 8 * budget.sigma).all()) == holds
            assert budget.worst is not None and bool((error <= budget.worst).all()) == holds
    off = [budget.value.abs() * 1e-5 > 8 * budget.sigma for budget in found]
    assert all(float(each.double().mean()) > 0.5 for each in off)


@pytest.mark.parametrize("number", NUMBERS[1:])
@pytest.mark.parametrize("form", ["masked_fill", "where", "mixed"])
def test_a_row_of_nothing_but_the_number_is_uniform(form: str, number: float) -> None:
    hidden = FUTURE.clone()
    hidden[0] = True
    found = read(attention(FORMS[form], hidden, number), "ieee32")
    got = program(attention(FORMS[form], hidden, number), Derivative.VJP, 3)(*(x.float() for x in inputs()))  # type: ignore[arg-type]
    for x, budget in zip(got, found, strict=True):
        assert float((budget.sigma / budget.value.abs()).nanmedian()) < 1e-6
        assert ((x.double() - budget.value).abs() <= 8 * budget.sigma).all()
    assert (found[0].value[:, 0] * 1e-4).abs().gt(8 * found[0].sigma[:, 0]).all()


def test_scores_that_a_large_number_was_added_to_are_lost() -> None:
    hidden = torch.ones(6, 6, dtype=torch.bool)
    o = read(attention(FORMS["added"], hidden, -1e9), "ieee32")[0]
    assert float((o.sigma / o.value.abs()).median()) > 0.1  # float32 holds multiples of 64 there


@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_a_mask_that_is_scaled_out_of_the_format_overflows(factor: float) -> None:
    found = read(
        attention(lambda s, hidden, number: s.masked_fill(hidden, number) * factor, FUTURE, NUMBERS[-1]), "ieee32"
    )
    assert found[0].overflow is not None
