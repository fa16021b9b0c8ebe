"""Budgets of products of 8-bit floats: what tensor cores of sm_90 cut is within them, and no more than that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from forward_budget import budget_of, outcome
from torch import Tensor

from gradoracle.host.interpreter.accumulation import TensorCore, in_blocks
from gradoracle.model.finding import Outcome
from gradoracle.model.formats import FORMATS

DTYPES = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
PAIRS = [("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn"), ("float8_e5m2", "float8_e5m2")]
RECIPES = ("normal", "wide", "positive", "ramp")


def operand(name: str, shape: tuple[int, int], recipe: str, seed: int) -> Tensor:
    """Numbers of an 8-bit format, as float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator)
    if recipe == "wide":
        x = x * 2.0 ** torch.randint(-4, 5, shape, generator=generator)
    if recipe == "positive":
        x = x.abs() + 1
    if recipe == "ramp":
        x = x.abs() * torch.linspace(0.01, 16, shape[-1])
    return x.to(DTYPES[name]).double()


def on_wgmma(x: Tensor, y: Tensor, names: tuple[str, str], **changes: int) -> Tensor:
    """x [M K] @ y [N K]^T, of numbers of 8-bit formats."""
    core = TensorCore(32, tuple(FORMATS[name].lowest for name in names), fraction=13, kept=13)  # type: ignore[arg-type]
    zeros = np.zeros((len(x), len(y)), np.float32)
    left, right = x.float().numpy(), y.T.contiguous().float().numpy()
    return torch.from_numpy(in_blocks(left, right, zeros, replace(core, **changes)))  # type: ignore[arg-type]


def scales(rows: int, seed: int) -> Tensor:
    return (torch.rand(rows, 1, generator=torch.Generator().manual_seed(seed)) + 0.1).double()


def after(x: Tensor, y: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """Scaled as a kernel does."""
    return x @ y.T * s * t.T


def before(x: Tensor, y: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """Dequantised operands."""
    return (x * s) @ (y * t).T


def judged(
    names: tuple[str, str], recipe: str, depth: int, function: Callable[..., Tensor], preset: str, **changes: int
) -> Outcome:
    """What the product of tensor cores is judged to be; ``changes`` make other cores."""
    x, y = operand(names[0], (24, depth), recipe, 0), operand(names[1], (16, depth), recipe, 1)
    s, t = scales(24, 2), scales(16, 3)
    held = [*names, "float32", "float32"]
    budget = budget_of(function, x, y, s, t, preset=preset, input_dtypes=held, output_dtypes=["float32"])
    return outcome((on_wgmma(x, y, names, **changes).double() * s * t.T).float(), budget)[0]


@pytest.mark.parametrize("depth", [32, 200, 2048])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("names", PAIRS)
@pytest.mark.parametrize("function", [after, before])
def test_what_wgmma_cuts_is_within_the_budget(
    names: tuple[str, str], recipe: str, depth: int, function: Callable[..., Tensor]
) -> None:
    """Sums of 2048 positive products lose 3 % of themselves, so a budget that explains it is too wide to check by."""
    found = judged(names, recipe, depth, function, "ieee32-fp8")
    assert found is not Outcome.VIOLATED
    if depth == 32 or (function is after and depth == 200):
        assert found is Outcome.HOLDS


@pytest.mark.parametrize("recipe", ["normal", "wide"])
@pytest.mark.parametrize("names", PAIRS)
def test_without_the_preset_it_is_not_and_a_core_of_fewer_bits_never_is(names: tuple[str, str], recipe: str) -> None:
    assert judged(names, recipe, 200, after, "ieee32") is Outcome.VIOLATED
    assert judged(names, recipe, 200, after, "ieee32-fp8", fraction=7, kept=7) is Outcome.VIOLATED
    assert judged(names, recipe, 200, before, "ieee32-fp8", fraction=4, kept=4) is Outcome.VIOLATED


def test_products_of_16_bits_have_no_other_budget_without_the_preset() -> None:
    x, y = (operand("float8_e4m3fn", (8, 64), "wide", seed) for seed in (4, 5))
    plain, own = (
        budget_of(lambda x, y: x @ y.T, x, y, preset=preset, input_dtypes=["bfloat16"] * 2, output_dtypes=["float32"])
        for preset in ("bf16", "bf16-fp8")
    )
    assert bool((own.sigma > 8 * plain.sigma).all())
