"""The semi-CRF beyond its definition: the engine judges long sequences by the recursion, budgets and balls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gradoracle.properties.semicrf import FAMILY as semicrf
from gradoracle.properties.semicrf.readings.scalable import LARGEST_SYSTEM
from gradoracle.properties.universal.derivatives import forward_matches_the_oracle, vjp_matches_the_oracle
from torch import Tensor

from gradoracle.check.acceptance import judge
from gradoracle.check.evidence import Evidence
from gradoracle.check.judge_property import judge_property
from gradoracle.model.contract import PRESETS
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Outcome
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status
from gradoracle.oracle.truth import Oracle
from tests.properties import judging
from tests.properties.semicrf import segmentations
from tests.properties.semicrf.plain import called
from tests.properties.semicrf.samples import apart, defined


def evidence(words: str, call: Callable[..., Tensor], reading: str = "auto") -> Evidence:
    line = f"case:1 semicrf cpu float32 {words} lengths~highest seed=5"
    return judging.evidence(line, Kernel("plain", "semicrf", call), Oracle(semicrf, reading))


CASES = [
    "B=2 T=12 C=3 K=4 transition~normal",
    "B=2 T=12 C=3 K=4 transition~normal:100 cum_scores~normal:100",
    "B=2 T=300 C=2 K=3 transition~normal",
    "B=1 T=700 C=3 K=4 transition_by_duration~normal proj_start~normal proj_end~normal",
    "B=1 T=300 C=2 K=3 cum_scores~ramp:900 transition~constant",
]


@pytest.mark.parametrize("words", CASES)
def test_a_correct_kernel_holds_and_one_with_shifted_durations_does_not(words: str) -> None:
    for prop in (forward_matches_the_oracle, vjp_matches_the_oracle):
        assert judge_property(prop, evidence(words, called())).status is Status.HOLDS
        assert judge_property(prop, evidence(words, called(shift=1))).status is Status.VIOLATED


@pytest.mark.parametrize("derivative", list(Derivative))
def test_where_both_serve_they_give_the_same(derivative: Derivative) -> None:
    own = evidence(CASES[0], called()).sample
    scaled, direct = semicrf.scalable.values(own, derivative), defined(own, derivative)
    assert set(scaled) == set(direct)
    assert max(apart(scaled[name], direct[name]) for name in direct) < 1e-12


def test_long_sequences_are_certified_without_a_graph() -> None:
    own = evidence("B=1 T=1000 C=2 K=3 transition~normal", called(), "certified")
    for prop in (forward_matches_the_oracle, vjp_matches_the_oracle):
        assert judge_property(prop, own).status is Status.HOLDS
    assert {truth.reading for truth in own.truths(Derivative.VJP).values()} == {"certified"}
    assert not own.oracle._graphs


def test_extreme_scores_are_not_left_to_the_linear_domain_of_float64() -> None:
    own = evidence(CASES[1], called())
    assert LARGEST_SYSTEM >= (12 + 1) * 3 and own.oracle.scalable(own.sample) is not None
    graph = Oracle(semicrf).graph(own.sample, Derivative.FORWARD)
    log_z = own.oracle.truth(
        own.sample, Derivative.FORWARD, own.budgets(Derivative.FORWARD), PRESETS["ieee32"]
    )["log_z"].value  # fmt: skip
    assert bool(log_z.isfinite().all()) and len(list(graph.nodes)) > 0
    assert not bool(torch.isfinite(defined(own.sample, Derivative.FORWARD)["log_z"]).all())


@pytest.mark.parametrize("steps", [7, 57, 300])
def test_the_hessian_of_one_path_is_0_and_decided(steps: int) -> None:
    """A kernel in float64 gives 0, or what is left where logarithms cancel; a wrong one gives anything else."""
    line = f"case:1 semicrf cpu float32 B=1 T={steps} C=1 K=1 transition~normal seed=3"
    own = segmentations.evidence(line, segmentations.SHIPPED)
    for name, truth in own.truths(Derivative.HVP).items():
        assert bool((truth.value == 0).all()), name
        allowed = own.allowance(Derivative.HVP, name, "definition")
        inside = (allowed.sigma > 0).double()  # past the length all kernels give 0
        for left in (0.0, 3.5e-15):
            found = judge(name, left * inside, truth.value, allowed, continuous=True)
            assert (found.outcome, found.message) == (Outcome.HOLDS, "the truth is 0 throughout"), left
        assert judge(name, 1e-5 * inside, truth.value, allowed, continuous=True).outcome is Outcome.VIOLATED
