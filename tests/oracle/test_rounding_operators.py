"""The rounding reading of every operator of the catalogue: what eager PyTorch gives stays within its budget."""

from __future__ import annotations

import pytest
import torch
from catalogue import CATALOGUE
from torch import Tensor

from gradoracle.model.contract import EXACT, PRESETS
from gradoracle.model.derivative import Derivative, program
from gradoracle.model.formats import FORMATS
from gradoracle.oracle.exact.graph import UnsupportedOperator
from gradoracle.oracle.exact.trace import trace
from gradoracle.oracle.rounding.reading import Budget, budgets

EVERY = [pytest.param(name, d, id=f"{name}-{d.value}") for name in CATALOGUE for d in Derivative]
CONVERTS = "float32_inside"  # converts to float32 itself, which a reading in exact arithmetic does not


def read(name: str, derivative: Derivative, preset: str) -> tuple[list[Budget], tuple[Tensor, ...]]:
    """The budgets at inputs that the contract's dtype holds, and what eager PyTorch gives in that dtype."""
    entry, contract = CATALOGUE[name], PRESETS[preset]
    own = [x.to(getattr(torch, contract.dtype)) for x in entry.arguments(derivative, seed=3)]
    exact = [x.double() for x in own]
    found = budgets(entry.graph(derivative), exact, contract, worst=True)
    return found, program(entry.function, derivative, len(entry.shapes))(*own)


@pytest.mark.parametrize(("name", "derivative"), EVERY)
def test_eager_float32_is_within_budget(name: str, derivative: Derivative) -> None:
    found, got = read(name, derivative, "ieee32")
    entry = CATALOGUE[name]
    values = entry.graph(derivative)(*(x.float().double() for x in entry.arguments(derivative, seed=3)))
    rtol = 1e-6 if name == CONVERTS else 1e-13
    for budget, result, value in zip(found, got, values, strict=True):
        torch.testing.assert_close(budget.value, value.double(), rtol=rtol, atol=rtol, equal_nan=True)
        finite = budget.value.isfinite()
        assert budget.sigma[finite].isfinite().all() and (budget.sigma >= budget.floor).all()
        assert (budget.sigma >= budget.independent).all() and not budget.sigma[~finite].any()
        error = torch.where(finite, (result.double() - budget.value).abs(), 0.0)
        assert (error <= 8 * budget.sigma).all()
        assert budget.worst is not None and (error <= budget.worst).all()
        # a budget that explains everything explains nothing
        shown = finite & (budget.value != 0)
        if shown.any():
            assert float((budget.sigma / budget.value.abs())[shown].median()) < 1e-5


@pytest.mark.parametrize("preset", ["eager-bf16", "eager-fp16"])
@pytest.mark.parametrize("name", CATALOGUE)
def test_eager_16_bit_is_within_its_budget(name: str, preset: str) -> None:
    try:
        found, got = read(name, Derivative.VJP, preset)
    except (NotImplementedError, RuntimeError) as error:
        if any(words in str(error) for words in ("not implemented for", "dtype", "support", "but got BFloat16")):
            pytest.skip(f"PyTorch has no kernel: {error}")
        raise
    for budget, result in zip(found, got, strict=True):
        error = torch.where(budget.value.isfinite(), (result.double() - budget.value).abs(), 0.0)
        assert (error <= 8 * budget.sigma).all()


def test_an_operator_without_a_rule_is_named() -> None:
    graph = trace(lambda x: (torch.linalg.det(x),), torch.eye(3, dtype=torch.float64))
    with pytest.raises(UnsupportedOperator) as caught:
        budgets(graph, [torch.eye(3, dtype=torch.float64)], PRESETS["ieee32"])
    assert caught.value.reading == "rounding" and "linalg" in caught.value.operator


WRONG = {
    "exp": lambda y: y * (1 + 4e-6),
    "sum": lambda y: y * (1 + 2e-5),
    "softmax": lambda y: y.roll(1, -1),
    "layer_norm": lambda y: y + 2e-4,
    "cumsum": lambda y: torch.cat([y[..., :1], y[..., 1:] * (1 + 2e-5)], -1),
    "mm": lambda y: y + 1e-4,
    "gelu": lambda y: y * 1.0001,
    "var": lambda y: y * 5 / 4,
    "gather": lambda y: y * (1 + 4e-6),
    "scatter_add": lambda y: y + 1e-5,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_results_are_not_within_budget(name: str) -> None:
    found, got = read(name, Derivative.FORWARD, "ieee32")
    error = (WRONG[name](got[0]).double() - found[0].value).abs()
    assert (error > 8 * found[0].sigma).any()


UNIT = FORMATS["float32"].unit_roundoff


@pytest.mark.parametrize("sign", [1, -1])
def test_each_prefix_of_a_running_product_has_its_own_number_of_roundings(sign: int) -> None:
    x = (torch.rand(9, generator=torch.Generator().manual_seed(0), dtype=torch.float32) + 0.5).double() * sign
    (found,) = budgets(trace(lambda x: (x.cumprod(-1),), x), [x], PRESETS["ieee32"], worst=True)
    assert found.worst is not None
    steps = torch.arange(9, dtype=torch.float64)
    size = found.value.abs() * UNIT
    assert (found.worst <= size * (steps + 1.001)).all()  # and one for storing it
    assert (found.sigma <= size * ((steps + 1) / 3).sqrt() * 1.5).all()
    for got in (x.float().cumprod(-1), _by_doubling(x.float())):
        error = (got.double() - found.value).abs()
        assert (error <= 8 * found.sigma).all() and (error <= found.worst).all()
    wrong = found.value[0] * (1 + 5e-7)
    assert (wrong - found.value[0]).abs() > 8 * found.sigma[0]


def _by_doubling(x: Tensor) -> Tensor:
    """Running products as a parallel scan makes them."""
    step = 1
    while step < len(x):
        x = torch.cat([x[:step], x[step:] * x[:-step]])
        step *= 2
    return x


def test_a_running_product_of_a_factor_that_is_zero_but_for_its_rounding() -> None:
    x = torch.tensor([3.0, 1.1, 2.0], dtype=torch.float64)
    error = (torch.tensor([0.0, 1e-12, 0.0], dtype=torch.float64), None, None)
    graph = trace(lambda x: (x.cumprod(-1),), x)
    zero = torch.tensor([3.0, 0.0, 2.0], dtype=torch.float64)
    (found,) = budgets(graph, [zero], EXACT, input_errors=[error])  # type: ignore[list-item]
    torch.testing.assert_close(found.independent, torch.tensor([0.0, 3e-6, 6e-6], dtype=torch.float64))


def test_a_product_of_one_factor_is_exact() -> None:
    x = torch.tensor([[1.1], [2.3]], dtype=torch.float32).double()
    (found,) = budgets(trace(lambda x: (x.prod(-1),), x), [x], PRESETS["float64"], worst=True)
    assert found.worst is not None and (found.worst <= found.value.abs() * FORMATS["float64"].unit_roundoff).all()
