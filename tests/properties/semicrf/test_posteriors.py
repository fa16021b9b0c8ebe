"""What semi-CRF kernels say of paths, judged under their own contracts: float32 inside, and float64 rounded once."""

from __future__ import annotations

import functools

import pytest
import torch
from gradoracle.properties.semicrf.catalogue.boundaries import BOUNDARIES
from gradoracle.properties.semicrf.catalogue.marginals import MARGINALS
from gradoracle.properties.semicrf.posteriors import marginals, meetings
from torch import Tensor

from gradoracle.check.acceptance import judge
from gradoracle.check.error_relation import Part
from gradoracle.check.evidence import Evidence
from gradoracle.check.judge_property import judge_property
from gradoracle.model.finding import Outcome
from gradoracle.model.verdict import Status
from tests.properties.semicrf import plain, segmentations
from tests.properties.semicrf.segmentations import evidence
from tests.properties.semicrf.wrong import AGREE, CHAIN, COVER, GIVE, MEET

PROPERTIES = {prop.name: prop for prop in (*BOUNDARIES, *MARGINALS)}
START = "case:1 semicrf cpu float32"
EQUAL = "transition~constant cum_scores~constant duration_bias~constant"
LARGE = f"{START} B=1 T=2000 C=2 K=3 transition~normal cum_scores~normal:80 lengths~highest seed=3"  # log Z 1.3e5
CASES = {
    "short": f"{START} B=2 T=60 C=3 K=4 transition~normal lengths~highest seed=11",
    "projections": (
        f"{START} B=1 T=400 C=3 K=4 transition~normal proj_start~normal proj_end~normal lengths~highest seed=12"
    ),
    "by duration": f"{START} B=1 T=300 C=2 K=3 transition_by_duration~normal lengths~highest seed=3",
    "one label": f"{START} B=1 T=400 C=1 K=4 transition~normal lengths~highest seed=3",
    "equal scores": f"{START} B=1 T=99 C=2 K=3 {EQUAL} lengths~highest seed=4",
    "log Z of 1e5": LARGE,
}


@functools.cache
def right(name: str) -> Evidence:
    return evidence(CASES[name], plain.with_tables())


GROUPED = [pytest.param(name, marks=pytest.mark.xdist_group(f"right tables, {name}")) for name in CASES]


@pytest.mark.parametrize("property_name", [MEET, GIVE, CHAIN, COVER, AGREE])
@pytest.mark.parametrize("name", GROUPED)
def test_a_correct_kernel_with_float32_inside_holds(name: str, property_name: str) -> None:
    """Of exp(alpha + beta - log Z), the true log Z, what log Z of the kernel is off by is a part."""
    own = right(name)
    assert PROPERTIES[property_name].applies(own.case, plain.with_tables()) is None
    found = judge_property(PROPERTIES[property_name], own)
    assert not any(f.outcome is Outcome.VIOLATED for f in found.findings), found.findings
    assert found.status is Status.HOLDS or name == "log Z of 1e5", (found.status, found.reason)


@pytest.mark.parametrize("fault", plain.FAULTS)
@pytest.mark.parametrize("name", ["projections", "by duration", "log Z of 1e5"])
def test_norms_that_are_lost_or_of_float32_are_caught(name: str, fault: str) -> None:
    found = segmentations.judge(PROPERTIES[GIVE], CASES[name], plain.with_tables(fault))
    assert found.status is Status.VIOLATED


def test_meetings_of_a_float32_kernel_err_as_much_as_their_budget_says_and_not_much_less() -> None:
    """40 sigma where log Z is left out (one label, T = 400), 178 at T = 2000."""
    squares = []
    for name in ("projections", "one label", "log Z of 1e5"):
        part = meetings(evidence(CASES[name], plain.with_tables()))
        ratios = ((part.got - part.true) / part.allowance.sigma)[part.true > 1e-6]
        assert float(ratios.abs().max()) < 5.0, name
        squares.append(ratios.square().mean())
    assert 0.1 < float(torch.stack(squares).mean().sqrt()) < 1.5


def _cut(part: Part) -> Tensor:
    """Float32 numbers next to the truth on the side of 0: what a kernel has that cuts where it should round."""
    nearest = part.true.float()
    return torch.where(nearest.double().abs() > part.true.abs(), nearest.nextafter(torch.zeros_like(nearest)), nearest)


@pytest.mark.parametrize("words", ["B=2 T=120 C=3 K=4 transition~normal", "B=2 T=60 C=4 K=12 transition~normal"])
def test_marginals_of_a_kernel_in_float64_are_rounded_once(words: str) -> None:
    """One rounding has an rms of 1 sigma, and no more than the root of 3; counted twice, and at each place of what
    positions add up, sigma had been 1.4 times that, and 5 times for positions, where cut results passed."""
    own = evidence(f"{START} {words} lengths~highest seed=5", segmentations.SHIPPED)
    for name, part in marginals(own).items():
        inside = (part.allowance.sigma > 0) & (part.true < 1.0)
        ratios = ((part.got.double() - part.true) / part.allowance.sigma)[inside]
        assert 0.85 < float(ratios.square().mean().sqrt()) < 1.15, name
        assert float(ratios.abs().max()) < 1.8, name
        right = judge(name, part.got, part.true, part.allowance, continuous=True)
        assert right.outcome is Outcome.HOLDS, right.message
        wrong = judge(name, _cut(part), part.true, part.allowance, continuous=True)
        assert wrong.outcome is Outcome.VIOLATED, name


def test_a_boundary_at_0_may_be_added_up_from_the_segments_that_begin_there() -> None:
    part = marginals(evidence(CASES["projections"], plain.with_tables()))["boundary"]
    off = float((part.got.double() - part.true)[0, 0].abs())
    assert 0.0 < off < 5.0 * float(part.allowance.sigma[0, 0])
    wrong = judge("boundary", part.got * 1.001, part.true, part.allowance, continuous=True)
    assert wrong.outcome is Outcome.VIOLATED
