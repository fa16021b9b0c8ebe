"""The rules of the verdict, each with an answer that breaks it alone and a correct answer that passes."""

from __future__ import annotations

import math

import pytest
import torch

from gradoracle.check.acceptance import Allowance, exactly, judge
from gradoracle.check.spread import pooled, typical
from gradoracle.model.finding import LOCAL_SIGMA, Extent, Outcome, Pool, Span

SHAPE, PROBES = (40, 50), 16


@pytest.fixture
def truth():
    return torch.randn(*SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def allowance(truth):
    generator = torch.Generator().manual_seed(2)
    sigma = 1e-6 * (0.5 + torch.rand(*SHAPE, dtype=torch.float64, generator=generator))
    errors = sigma * torch.randn(PROBES, *SHAPE, dtype=torch.float64, generator=generator)
    return Allowance(sigma, errors, worst=40 * sigma, floor=torch.zeros(SHAPE, dtype=torch.float64))


def right(truth, allowance, seed=3):
    noise = torch.randn(*SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return truth + 0.8 * allowance.sigma * noise


def one(axis, index, size, extent=Extent.ONE):
    """The span of a dim of which one index holds wrong elements."""
    return Span(axis, extent, index, index, 1, size)


def test_right_answer_holds_under_every_rule(truth, allowance):
    for continuous in (True, False):
        found = judge("o", right(truth, allowance), truth, allowance, continuous=continuous)
        assert found.outcome is Outcome.HOLDS
        assert 0 < found.error < 1
        assert found.sensitivity < 1e-4
        assert found.elements == 2000


def test_one_element_out_is_local(truth, allowance):
    got = right(truth, allowance)
    got[7, 11] = truth[7, 11] + (LOCAL_SIGMA + 1) * allowance.sigma[7, 11]
    found = judge("o", got, truth, allowance, continuous=True)
    assert (found.outcome, found.rule, found.worst.index) == (Outcome.VIOLATED, "local", (7, 11))
    assert found.error == pytest.approx(9 / 8)
    assert judge("o", got, truth, allowance, continuous=False).outcome is Outcome.HOLDS  # within the worst case


def test_beyond_the_worst_case_is_wrong_on_repeated_values(truth, allowance):
    got = right(truth, allowance)
    got[0, 0] += 41 * allowance.sigma[0, 0]
    assert judge("o", got, truth, allowance, continuous=False).rule == "worst case"


def test_coherent_bias_far_below_the_local_limit_is_wrong(truth, allowance):
    got = right(truth, allowance) + 1e-6 * truth
    found = judge("o", got, truth, allowance, continuous=True)
    assert (found.outcome, found.rule) == (Outcome.VIOLATED, "bias")
    assert "+1.0" in found.message or "+9." in found.message


def test_bias_that_the_probes_show_is_correct(truth, allowance):
    slopes = torch.linspace(-2e-6, 2e-6, PROBES, dtype=torch.float64).view(-1, 1, 1)
    shared = Allowance(allowance.sigma, allowance.errors + slopes * truth, None, allowance.floor)
    got = right(truth, allowance) + 1e-6 * truth
    assert judge("o", got, truth, shared, continuous=True).outcome is Outcome.HOLDS


def test_a_spread_below_the_local_limit_is_wrong(truth, allowance):
    noise = torch.rand(*SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) * 2 - 1
    got = truth + 5 * allowance.sigma * noise
    found = judge("o", got, truth, allowance, continuous=True)
    assert (found.outcome, found.rule) == (Outcome.VIOLATED, "pooled")


def test_elements_that_share_one_error_are_one_draw_whatever_its_size():
    generator = torch.Generator().manual_seed(5)
    sigma, truth = torch.ones(1, 33, dtype=torch.float64), torch.zeros(1, 33, dtype=torch.float64)
    one = torch.randn(PROBES, 1, 1, dtype=torch.float64, generator=generator).expand(-1, 1, 33)
    many = torch.randn(PROBES, 1, 33, dtype=torch.float64, generator=generator)
    got = truth + 2.0  # two sigma, in all elements at once
    for size in (1.0, 0.5, 1e-3):
        together = judge("o", got, truth, Allowance(sigma, one * size), continuous=True)
        assert together.pool.shared == pytest.approx(33**2, rel=0.3) and together.outcome is Outcome.HOLDS
        apart = judge("o", got, truth, Allowance(sigma, many * size), continuous=True)
        assert apart.pool.shared < 2 * 33 and (apart.outcome, apart.rule) == (Outcome.VIOLATED, "pooled")
    still = judge("o", got, truth, Allowance(sigma, many * 0), continuous=True)
    assert still.pool.shared == 33 and still.outcome is Outcome.VIOLATED


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_where_the_truth_is_finite_is_exact(truth, allowance, value):
    got = right(truth, allowance)
    got[3, 4] = value
    found = judge("o", got, truth, allowance, continuous=True)
    assert (found.outcome, found.rule, found.worst.index) == (Outcome.VIOLATED, "exact", (3, 4))
    assert found.lost and found.place == str(found.region) and found.pattern.startswith(found.place)
    assert found.region.spans == (one("dim 0", 3, 40), one("dim 1", 4, 50))
    named = judge("o", got, truth, allowance, continuous=True, axes=("B", "N"))
    assert named.region.spans == (one("B", 3, 40), one("N", 4, 50))
    excused = torch.zeros(SHAPE, dtype=torch.bool)
    excused[3, 4] = True
    declared = Allowance(allowance.sigma, allowance.errors, overflow=excused)
    assert judge("o", got, truth, declared, continuous=True).outcome is Outcome.HOLDS


def test_a_truth_beyond_the_dtype_may_be_infinite(truth, allowance):
    truth[0, 0], got = 1e6, right(truth, allowance)
    got[0, 0] = math.inf
    assert judge("o", got, truth, allowance, continuous=True, largest=65504.0).outcome is Outcome.HOLDS
    assert judge("o", got, truth, allowance, continuous=True).outcome is Outcome.VIOLATED


def test_a_masked_entry_must_be_exactly_zero(truth, allowance):
    truth[5], allowance.sigma[5], allowance.errors[:, 5] = 0, 0, 0
    got = right(truth, allowance)
    assert judge("o", got, truth, allowance, continuous=True).outcome is Outcome.HOLDS
    got[5, 9] = 1e-40
    found = judge("o", got, truth, allowance, continuous=True)
    assert (found.outcome, found.rule) == (Outcome.VIOLATED, "exact")
    assert "exactly 0" in found.message and not found.lost


def test_a_budget_as_wide_as_the_truth_never_holds(truth, allowance):
    wide = Allowance(truth.abs() / 10, truth.abs() / 10 * torch.ones(PROBES, 1, 1, dtype=torch.float64))
    found = judge("o", truth, truth, wide, continuous=True)
    assert found.outcome is Outcome.NOT_CHECKED
    assert "budget too wide" in found.message


def test_undecided_elements_are_counted_and_not_compared(truth, allowance):
    undecided = torch.zeros(SHAPE, dtype=torch.bool)
    undecided[2, 2] = True
    got = right(truth, allowance)
    got[2, 2] = 1e9
    unknown = Allowance(allowance.sigma, allowance.errors, undecided=undecided)
    found = judge("o", got, truth, unknown, continuous=True)
    assert (found.outcome, found.undecided, found.elements) == (Outcome.HOLDS, 1, 1999)


def added(findings):
    """What the findings pool, added up by tensor."""
    pools = {}
    for found in findings:
        pools[found.tensor] = pools[found.tensor] + found.pool if found.tensor in pools else found.pool
    return pools


def test_pools_add_up_to_what_all_their_cases_say():
    one = Pool(10, 12.0, (9.0, 11.0, 8.0), 1.0, 4.0, (0.5, -0.5, 0.25), 30.0)
    two = Pool(20, 18.0, (19.0, 21.0), -2.0, 5.0, (1.0, 2.0), 3.0)
    assert one + two == Pool(30, 30.0, (28.0, 32.0), -1.0, 9.0, (1.5, 1.5), 50.0), (
        "no tensor shares less than its count"
    )
    assert (one + two) + one == one + (two + one)


def test_pooling_finds_a_bias_that_no_single_case_shows(truth):
    def findings(slope):
        for seed in range(40):
            generator = torch.Generator().manual_seed(1000 + seed)
            sigma = torch.full(SHAPE, 1e-6, dtype=torch.float64)
            errors = sigma * torch.randn(PROBES, *SHAPE, dtype=torch.float64, generator=generator)
            allowance = Allowance(sigma, errors)
            yield judge("dq", right(truth, allowance, 100 + seed) + slope * truth, truth, allowance, continuous=True)

    wrong = list(findings(9e-8))
    assert all(f.outcome is Outcome.HOLDS for f in wrong)
    assert [f.rule for f in pooled(added(wrong)) if f.outcome is Outcome.VIOLATED] == ["bias"]
    assert all(f.outcome is Outcome.HOLDS for f in pooled(added(findings(0.0))))


def test_pooling_finds_a_spread_that_no_single_case_shows(truth, allowance):
    def findings(size):
        noise = torch.Generator().manual_seed(9)
        return [
            judge(
                "dq",
                truth + size * allowance.sigma * torch.randn(*SHAPE, dtype=torch.float64, generator=noise),
                truth,
                allowance,
                continuous=True,
            )
            for _ in range(60)
        ]

    assert all(f.outcome is Outcome.HOLDS for f in pooled(added(findings(0.9))))
    broken = [f for f in pooled(added(findings(1.12))) if f.outcome is Outcome.VIOLATED]
    assert [f.rule for f in broken] == ["pooled"]


def test_an_exact_fact_names_its_place():
    wrong = torch.zeros(3, 4, dtype=torch.bool)
    assert exactly("q", wrong, "was changed").outcome is Outcome.HOLDS
    wrong[2, 1] = True
    found = exactly("q", wrong, "was changed", axes=("B", "N"))
    assert found.region.spans == (one("B", 2, 3, Extent.TAIL), one("N", 1, 4)) and not found.lost
    assert found.place == found.pattern == str(found.region)
    assert exactly("q", wrong, "is not finite", lost=True).lost
    assert (found.outcome, found.worst.index, found.message) == (Outcome.VIOLATED, (2, 1), "was changed")


def test_slopes_too_steep_to_square_are_wide_and_not_a_fault():
    huge = torch.full(SHAPE, 1e145, dtype=torch.float64)
    truth = torch.full(SHAPE, 1e-10, dtype=torch.float64)
    found = judge("o", truth, truth, Allowance(huge, huge.expand(PROBES, *SHAPE)), continuous=True)
    assert found.outcome is Outcome.NOT_CHECKED
    assert found.message.startswith("budget too wide")


def test_typical_is_what_the_probes_show_and_neither_a_wider_spread_nor_a_steeper_slope(truth, allowance):
    deviation = allowance.sigma.div(truth.abs().clamp_min(1e-9)).median() / 2000**0.5
    got = {
        "right": right(truth, allowance),
        "wide": truth + 1.3 * (right(truth, allowance) - truth),
        "steep": right(truth, allowance) + 4 * deviation * truth,
    }
    found = {name: judge("o", each, truth, allowance, continuous=True) for name, each in got.items()}
    assert {name: finding.outcome for name, finding in found.items()} == dict.fromkeys(got, Outcome.HOLDS)
    assert {name: typical(finding) for name, finding in found.items()} == {"right": True, "wide": False, "steep": False}


def test_a_pool_of_findings_picked_as_typical_raises_no_alarm(truth, allowance):
    """Only cases with small errors of a kernel at the edge of its budget: together they look no worse than each."""
    findings = [
        judge("o", truth + 1.25 * (right(truth, allowance, seed) - truth), truth, allowance, continuous=True)
        for seed in range(400)
    ]
    picked = [finding for finding in findings if typical(finding)]
    assert 20 <= len(picked) < len(findings)
    assert all(finding.outcome is not Outcome.VIOLATED for finding in pooled(added(picked)))


def test_elements_that_share_one_rounding_are_one_draw(truth):
    """Errors of one rounding fill a uniform interval: 2.3 sigma of a significand near 1 are no wonder, 5 are."""
    weights = torch.linspace(0.5, 2.0, 8, dtype=torch.float64).view(2, 4)
    draws = torch.tensor([(-1) ** r * (0.7 + 0.04 * r) for r in range(PROBES)], dtype=torch.float64)
    together = Allowance(weights * draws.square().mean().sqrt(), draws.view(-1, 1, 1) * weights)
    free = Allowance(together.sigma, together.errors * torch.randn(PROBES, 2, 4, dtype=torch.float64).sign())
    own = torch.full((2, 4), 100.0, dtype=torch.float64)
    for size, allowance, outcome in ((2.3, together, "holds"), (5.0, together, "violated"), (2.6, free, "violated")):
        found = judge("sum", own + size * together.sigma, own, allowance, continuous=True)
        assert found.outcome.value == outcome, (size, found)
