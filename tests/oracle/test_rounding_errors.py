"""Rounding errors by numba have the bits of those by torch."""

from __future__ import annotations

import pytest
import torch

from gradoracle.oracle.rounding import probes

pytestmark = pytest.mark.skipif(probes.compiled() is None, reason="numba is not installed")

SHAPE, RUNS = (3, 5, 7), 4
GENERATOR = torch.Generator().manual_seed(1)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=GENERATOR)


ONTO = {
    "nothing": None,
    "one for all": normal(*SHAPE),
    "one each": normal(RUNS, *SHAPE),
    "a view": normal(7, 5, 3).permute(2, 1, 0),
}


@pytest.mark.parametrize("onto", ONTO)
@pytest.mark.parametrize("bits", [8, 11, 24])
def test_errors_have_the_bits_of_those_by_torch(onto, bits, monkeypatch):
    key, total = normal(*SHAPE) * 10.0 ** normal(*SHAPE).mul(9).round(), ONTO[onto]
    key[0, 0, :3] = torch.tensor([0.0, torch.inf, torch.nan], dtype=torch.float64)
    width, factors = normal(*SHAPE[1:]).abs(), torch.exp2(-torch.rand(RUNS, dtype=torch.float64))
    by_numba = probes.rounding_errors(key, bits, factors, width, total)
    monkeypatch.setattr(probes, "compiled", lambda: None)
    by_torch = probes.rounding_errors(key, bits, factors, width, total)
    assert by_numba.shape == (RUNS, *SHAPE) and torch.equal(by_numba, by_torch)
    assert by_numba.unique().numel() > by_numba.numel() // 2


@pytest.mark.parametrize("onto", ["nothing", "one for all", "one each"])
def test_keys_of_each_probe_are_rounded_as_those_of_all(onto, monkeypatch):
    keys, factors = normal(RUNS, *SHAPE), torch.exp2(-torch.rand(RUNS, dtype=torch.float64))
    width, total = normal(*SHAPE).abs(), ONTO[onto]
    by_numba = probes.rounding_errors(keys, 8, factors, width, total, each=True)
    single = [
        probes.rounding_errors(
            keys[r], 8, factors[r : r + 1], width, None if total is None else total.expand_as(keys)[r]
        )
        for r in range(RUNS)
    ]
    assert torch.equal(by_numba, torch.cat(single))
    monkeypatch.setattr(probes, "compiled", lambda: None)
    assert torch.equal(probes.rounding_errors(keys, 8, factors, width, total, each=True), by_numba)


def test_another_factor_gives_other_errors():
    key, width = normal(50), torch.ones(50, dtype=torch.float64)
    one, other = (probes.rounding_errors(key, 11, torch.tensor([f], dtype=torch.float64), width) for f in (0.6, 0.7))
    assert not torch.equal(one, other) and float(one.abs().max()) <= 1.0
