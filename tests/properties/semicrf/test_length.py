"""Long sequences: correct kernels are as many sigma off at any length."""

from __future__ import annotations

import pytest
import torch
from gradoracle.properties.semicrf.catalogue.length import errors_in_sigma_do_not_grow_with_the_length as the_property
from sweeps import slow

from gradoracle.model.machine_code import HAS_NUMBA
from gradoracle.model.verdict import Status
from tests.properties.semicrf import single
from tests.properties.semicrf.segmentations import SHIPPED, judge
from tests.properties.semicrf.wrong import FLOAT32

pytestmark = pytest.mark.skipif(not HAS_NUMBA, reason="sequences of 131 072 positions need numba")

SIZES = "case:1 semicrf cpu float32 B=1 C=2 K=3 lengths~highest transition~normal"


def test_the_shipped_kernel_holds() -> None:
    found = judge(the_property, f"{SIZES} T=20000 seed=8", SHIPPED)
    assert found.status is Status.HOLDS, (found.status, found.reason, found.findings)


def test_it_falls_on_long_sequences_with_a_sigma_alone() -> None:
    found = judge(the_property, f"{SIZES} T=10000 cum_scores~constant seed=9", FLOAT32)
    assert found.status is Status.NOT_CHECKED
    short = f"{SIZES.replace('highest', 'lowest')} T=10000 seed=9"
    assert judge(the_property, short, FLOAT32).status is Status.NOT_CHECKED


@pytest.mark.parametrize(("positions", "seeds"), [(131_072, 1), slow(262_144, 3)])
def test_a_float32_kernel_is_as_many_sigma_off_at_many_positions(positions: int, seeds: int) -> None:
    """The rms over dcum_scores is at most twice that at T = 1 000; errors grow in proportion to T, and sigma too."""
    from gradoracle.properties.semicrf.readings import recursion as recursion
    from gradoracle.properties.semicrf.readings.budgets import budgets

    from gradoracle.model.contract import PRESETS
    from gradoracle.model.derivative import Derivative
    from tests.properties.semicrf.samples import random_walk

    rms, sigmas = [], []
    for steps, count in ((1000, 3), (positions, seeds)):
        squares, sizes = [], []
        for seed in range(count):
            inputs = random_walk({"B": 1, "T": steps, "C": 2, "K": 3}, seed=seed)
            true = recursion.gradients(inputs, torch.ones(1))["cum_scores"]
            known = budgets(inputs, torch.ones(1), PRESETS["ieee32"], Derivative.VJP)["dcum_scores"].sigma
            error = single.run(inputs, torch.ones(1))["dcum_scores"].double() - true
            squares.append(torch.where(error == 0, 0.0, error / known).square().mean())
            sizes.append((known.square().mean() / true.square().mean()).sqrt())
        rms.append(float(torch.stack(squares).mean().sqrt()))
        sigmas.append(float(torch.stack(sizes).mean()))
    assert 0.05 < rms[1] < 2 * rms[0]
    assert sigmas[1] < 2e-3 and sigmas[1] > 16 * sigmas[0]
