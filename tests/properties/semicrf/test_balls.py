"""Certified forward-backward of the semi-CRF: holds what enumeration finds, and is narrow at T = 100 000."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradoracle.properties.semicrf.enumeration import Enumeration, enumerate_paths
from gradoracle.properties.semicrf.readings import recursion as recursion
from gradoracle.properties.semicrf.readings.balls import Certified, certify
from mpmath import mp
from torch import Tensor

from gradoracle.oracle.exact.enclosure import Enclosure
from tests.properties.semicrf.samples import WORDS, as_mpf, random_walk, sample

SIZES = ["B=2 T=1 C=1 K=1", "B=2 T=1 C=3 K=4", "B=2 T=4 C=3 K=1", "B=3 T=5 C=2 K=4"]


def holds(ball: Enclosure, exact: np.ndarray) -> bool:
    """Whether every number lies within the radius of its ball."""
    with mp.workdps(60):
        values, radii = as_mpf(ball).reshape(-1), ball.radius.reshape(-1).tolist()
        return all(
            v == x or abs(v - x) <= r + mp.mpf(10) ** -55
            for v, x, r in zip(values, exact.reshape(-1), radii, strict=True)
        )


def all_hold(found: Certified, paths: Enumeration, cotangent: Tensor) -> bool:
    exact = paths.gradients(cotangent)
    return holds(found.log_z, paths.log_z) and all(holds(ball, exact[n]) for n, ball in found.gradients.items())


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_every_ball_holds_what_enumeration_finds(words: str, sizes: str) -> None:
    own = sample(words, sizes)
    cotangent = own.cotangents["log_z"]
    found = certify(own.inputs, cotangent)
    assert all_hold(found, enumerate_paths(own.inputs, digits=60), cotangent)
    assert max(float(ball.radius.max()) for ball in (found.log_z, *found.gradients.values())) < 1e-27


def test_numbers_of_another_model_are_outside_by_far() -> None:
    own = sample("all by duration", "B=2 T=5 C=2 K=3")
    cotangent, found = own.cotangents["log_z"], certify(own.inputs, own.cotangents["log_z"])
    for name in ("duration_bias", "transition_by_duration", "proj_start", "cum_scores"):
        ulp = torch.zeros_like(own.inputs[name])
        ulp.view(-1)[0] = 2.0**-40
        other = enumerate_paths({**own.inputs, name: own.inputs[name].double() + ulp.double()}, digits=60)
        assert not all_hold(found, other, cotangent), name


def test_a_hundred_thousand_steps_are_proven_to_24_digits_and_the_float64_recursion_agrees() -> None:
    inputs = random_walk({"B": 1, "T": 100_000, "C": 2, "K": 3})
    found = certify(inputs)
    assert float(found.log_z.radius) < 1e-24
    plain = recursion.run(recursion.Problem(inputs), torch.ones(1))
    assert float(found.log_z.error(plain.log_z).abs()) < 1e-15 * float(plain.log_z)
    for name, ball in found.gradients.items():
        size = float(ball.high.abs().max())
        assert (
            float(ball.radius.max()) < 1e-24 * size
            and float(ball.error(plain.gradients[name]).abs().max()) < 1e-12 * size
        )


def test_nan_in_gives_an_unknown_or_nan_for_that_sequence_alone() -> None:
    inputs = random_walk({"B": 2, "T": 6, "C": 2, "K": 3})
    inputs["cum_scores"][0, 3, 1] = torch.nan
    found = certify(inputs)
    assert found.log_z.high.isnan().tolist() == [True, False]
    assert bool(found.gradients["cum_scores"].high[1].isfinite().all())
