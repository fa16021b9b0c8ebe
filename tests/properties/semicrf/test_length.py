"""Long sequences: correct kernels are as many sigma off at any length, and what only long ones show is caught."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradoracle.properties.semicrf.laws.length import errors_in_sigma_do_not_grow_with_the_length as the_law
from gradoracle.properties.universal import UNIVERSAL
from sweeps import slow
from torch import Tensor

from gradoracle.check.judge_case import judge_law
from gradoracle.model.finding import Outcome
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status
from gradoracle.oracle.exact.machine_code import HAS_NUMBA
from tests.properties.semicrf import single
from tests.properties.semicrf.segmentations import FAMILY, SHIPPED, evidence, judge

pytestmark = pytest.mark.skipif(not HAS_NUMBA, reason="sequences of 131 072 positions need numba")

SIZES = "case:1 semicrf cpu float32 B=1 C=2 K=3 lengths~highest transition~normal"
LONG = f"{SIZES} T=131072 seed=5"
LARGE = f"{SIZES} T=131072 duration_bias~normal:20 seed=9"  # log Z is 1.3e6
SHORTER = f"{SIZES} T=16384 duration_bias~normal:160 seed=9"  # and here it is as large
MODERATE = f"{SIZES} T=3000 seed=7"
LAWS = {law.name: law for law in UNIVERSAL} | {the_law.name: the_law}


def kernel(fault: str = "") -> Kernel:
    def call(cum_scores: Tensor, transition: Tensor, duration_bias: Tensor, lengths: Tensor, **absent: Any) -> Tensor:
        found: Tensor = single.Single.apply(cum_scores, transition, duration_bias, fault)
        return found

    return Kernel(fault or "float32 inside", FAMILY.name, call, dtypes=("float32",))


@pytest.mark.parametrize(
    ("fault", "line", "laws"),
    [
        ("norms in float32", LONG, (the_law.name, "vjp_matches_the_oracle")),
        ("scores cut at 1e6", SHORTER, (the_law.name, "vjp_matches_the_oracle", "forward_matches_the_oracle")),
        slow("scores cut at 1e6", LARGE, (the_law.name, "vjp_matches_the_oracle", "forward_matches_the_oracle")),
        ("durations one off", MODERATE, ("vjp_matches_the_oracle", "forward_matches_the_oracle")),
    ],
    ids=lambda given: given if isinstance(given, str) and len(given) < 20 else "",
)
def test_the_wrong_kernel_is_caught_and_the_right_one_holds(fault: str, line: str, laws: tuple[str, ...]) -> None:
    right, wrong = evidence(line, kernel()), evidence(line, kernel(fault))
    for law in laws:
        found = judge_law(LAWS[law], right)
        assert found.status is Status.HOLDS, [f for f in found.findings if f.outcome is Outcome.VIOLATED]
        found = judge_law(LAWS[law], wrong)
        assert found.status is Status.VIOLATED, (found.status, found.reason, found.findings)


def test_the_shipped_kernel_holds() -> None:
    found = judge(the_law, f"{SIZES} T=20000 seed=8", SHIPPED)
    assert found.status is Status.HOLDS, (found.status, found.reason, found.findings)


def test_it_falls_on_long_sequences_with_a_sigma_alone() -> None:
    found = judge(the_law, f"{SIZES} T=10000 cum_scores~constant seed=9", kernel())
    assert found.status is Status.NOT_CHECKED
    short = f"{SIZES.replace('highest', 'lowest')} T=10000 seed=9"
    assert judge(the_law, short, kernel()).status is Status.NOT_CHECKED


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
