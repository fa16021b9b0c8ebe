"""Budgets of the semi-CRF at any length: like the engine's own at small T, kept by correct kernels and not by wrong."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from gradoracle.properties.semicrf import FAMILY as semicrf
from gradoracle.properties.semicrf.readings import recursion as recursion
from gradoracle.properties.semicrf.readings.budgets import budgets, returned
from gradoracle.properties.semicrf.readings.scalable import SemiCRF
from sweeps import covering, slow
from torch import Tensor

from gradoracle.check.acceptance import Allowance, judge
from gradoracle.model import machine_code
from gradoracle.model.contract import PRESETS
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Outcome
from gradoracle.oracle.rounding.reading import Budget
from gradoracle.oracle.truth import Oracle
from tests.properties.semicrf import plain
from tests.properties.semicrf.samples import WORDS, random_walk, sample

CONTRACT = PRESETS["ieee32"]
LIMIT = 8.0  # sigma, of the local rule
RUNS = {
    "short": ({"B": 2, "T": 50, "C": 3, "K": 4}, {}),
    "projections": ({"B": 1, "T": 300, "C": 3, "K": 4}, {"projections": True, "by_duration": True}),
    "many durations": ({"B": 1, "T": 300, "C": 2, "K": 24}, {}),
    "thousand": ({"B": 1, "T": 1000, "C": 4, "K": 8}, {}),
    "scores of ten": ({"B": 1, "T": 500, "C": 2, "K": 3}, {"scale": 10.0}),
    "drift of fifty": ({"B": 1, "T": 500, "C": 2, "K": 3}, {"drift": 50.0}),
    "two thousand": ({"B": 1, "T": 2000, "C": 2, "K": 3}, {}),
    "five thousand": ({"B": 1, "T": 5000, "C": 2, "K": 3}, {}),
}
LENGTHS = [slow(name) if name == "five thousand" else name for name in RUNS]


SITUATIONS = ("transition", "by duration", "projections", "forbidden", "full lengths")
SIZES = ("B=3 T=5 C=2 K=4", "B=2 T=16 C=3 K=4")


def cotangent(batch: int, seed: int = 1) -> Tensor:
    return torch.randn(batch, generator=torch.Generator().manual_seed(seed))


def truth(inputs: dict[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    found = recursion.run(recursion.Problem(inputs), weights)
    return {"log_z": found.log_z} | {f"d{name}": gradient for name, gradient in found.gradients.items()}


def in_sigma(got: dict[str, Tensor], true: dict[str, Tensor], known: dict[str, Budget]) -> dict[str, Tensor]:
    errors = {name: (got[name].double() - true[name]).abs() for name in true}
    return {name: torch.where(error > 0, error / known[name].sigma, 0.0) for name, error in errors.items()}


@pytest.mark.skipif(not machine_code.HAS_NUMBA, reason="side by side needs numba")
@pytest.mark.parametrize("derivative", [Derivative.VJP, Derivative.HVP])
def test_probes_side_by_side_have_the_bits_of_one_after_the_other(
    derivative: Derivative, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, found = sample("transition", "B=2 T=40 C=2 K=3"), []
    for least in (0, 1 << 60):
        monkeypatch.setattr(machine_code, "_WORTH_A_THREAD", least)
        monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(4)))
        found.append(budgets(own.inputs, own.cotangents["log_z"], CONTRACT, derivative, tangents=own.tangents))
    for name, budget in found[0].items():
        assert torch.equal(budget.sigma, found[1][name].sigma) and bool((budget.sigma > 0).any()), name


@pytest.mark.parametrize(("derivative", "words", "sizes"), covering(itertools.product(Derivative, SITUATIONS, SIZES)))
def test_sigmas_are_near_those_that_the_engine_reads_from_the_definition(
    sizes: str, words: str, derivative: Derivative
) -> None:
    """Measured over these: medians 0.3 to 1.8 times the engine's for log Z and gradients, 0.14 to 1.1 for products.

    The engine's are of a solve with weights. Where paths are forbidden a correct kernel in logarithms has an rms of 0.2
    in them in its JVP, and of 0.7 in these (14 cases).
    """
    own = sample(words, sizes)
    traced = replace(semicrf, scalable=None)
    engine = Oracle(traced).budgets(own, derivative, CONTRACT, worst=True)
    found = budgets(own.inputs, own.cotangents["log_z"], CONTRACT, derivative, tangents=own.tangents, worst=True)
    assert set(found) == set(engine)
    for name, budget in engine.items():
        some = budget.sigma > 1e-12
        ratios = found[name].sigma[some] / budget.sigma[some]
        least = 0.1 if derivative.takes_tangents else 0.2
        assert least < float(ratios.median()) < 2.5, name
        assert bool((found[name].sigma[budget.sigma == 0] == 0).all()), name
        worst = found[name].worst
        assert worst is not None and bool((worst >= found[name].sigma).all()) and bool(worst.isfinite().all())


@pytest.mark.parametrize("kernel", ["gradients", "two_sided"])
@pytest.mark.parametrize("name", LENGTHS)
def test_right_float32_kernels_keep_them_and_are_not_far_below(name: str, kernel: str) -> None:
    sizes, options = RUNS[name]
    inputs = random_walk(sizes, seed=2, **options)  # type: ignore[arg-type]
    weights = cotangent(sizes["B"])
    known = budgets(inputs, weights, CONTRACT, Derivative.VJP, worst=True)
    got = getattr(plain, kernel)(inputs, weights)
    true = truth(inputs, weights)
    for tensor, errors in in_sigma(got, true, known).items():
        assert float(errors.max()) < 5.0, tensor
        bound = known[tensor].worst
        assert bound is not None and bool(((got[tensor].double() - true[tensor]).abs() <= bound).all()), tensor
        if errors.numel() > 100:
            assert 0.05 < float(errors.square().mean().sqrt()) < 2.5, tensor


@pytest.mark.parametrize("name", [name for name in RUNS if not name.endswith(" thousand")])
def test_right_jvp_and_hvp_keep_theirs(name: str) -> None:
    sizes, options = RUNS[name]
    inputs = random_walk(sizes, seed=2, **options)  # type: ignore[arg-type]
    weights, generator = cotangent(sizes["B"]), torch.Generator().manual_seed(4)
    tangents = {n: torch.randn(t.shape, generator=generator) for n, t in inputs.items() if n != "lengths"}
    known = {}
    for derivative in (Derivative.JVP, Derivative.HVP):
        known |= budgets(inputs, weights, CONTRACT, derivative, tangents=tangents)
    true = {"jvp.log_z": recursion.jvp(inputs, tangents)}
    true |= {f"hvp.{n}": x for n, x in recursion.hvp(inputs, tangents, weights).items()}
    got = plain.products(inputs, tangents, weights)
    for tensor, errors in in_sigma(got, true, known).items():
        assert float(errors.max()) < LIMIT, tensor
    got["hvp.cum_scores"] = got["hvp.cum_scores"] * (1 + 2.0**-7)  # a truncated operand
    assert float(in_sigma(got, true, known)["hvp.cum_scores"].max()) > LIMIT


@pytest.mark.parametrize("name", LENGTHS)
def test_wrong_kernels_do_not_keep_them(name: str) -> None:
    sizes, options = RUNS[name]
    inputs = random_walk(sizes, seed=2, **options)  # type: ignore[arg-type]
    weights = cotangent(sizes["B"])
    known, true = budgets(inputs, weights, CONTRACT, Derivative.VJP), truth(inputs, weights)
    right = plain.two_sided(inputs, weights)
    shifted = in_sigma(plain.two_sided(inputs, weights, shift=1), true, known)
    assert all(float(errors.max()) > LIMIT for errors in shifted.values())
    slip = 2.0**-9 if name == "drift of fifty" else 2.0**-10  # numbers of 50 drop more of a parameter's bits
    for tensor, scale in (("dcum_scores", 1 + slip), ("dduration_bias", 1 + slip), ("log_z", 1 + 2.0**-18)):
        changed = in_sigma(right | {tensor: right[tensor] * scale}, true, known)
        assert float(changed[tensor].max()) > LIMIT, tensor


def test_norms_in_float32_are_seen_at_twenty_thousand_steps() -> None:
    inputs = random_walk({"B": 1, "T": 20_000, "C": 2, "K": 3}, drift=1.0)
    known = budgets(inputs, torch.ones(1), CONTRACT, Derivative.FORWARD)["log_z"]
    both = recursion.forward_backward(inputs)
    steps = both.alpha_norm[0].diff().float()
    norm = torch.zeros(())
    for step in steps.tolist():
        norm = norm + torch.tensor(step)
    wrong = float(both.alpha_norm[0, 0]) + float(norm)
    assert abs(wrong - float(both.log_z)) > LIMIT * float(known.sigma)
    assert abs(float(both.log_z.float().double() - both.log_z)) < 2 * float(known.sigma)


def test_a_correct_kernel_is_as_many_sigma_off_at_any_length() -> None:
    """The rms over dcum_scores at T = 8 000 is at most twice that at T = 1 000."""
    found = []
    for steps in (1000, 8000):
        squares = []
        for seed in range(3):
            inputs = random_walk({"B": 1, "T": steps, "C": 2, "K": 3}, seed=seed)
            known = budgets(inputs, torch.ones(1), CONTRACT, Derivative.VJP)
            got = plain.gradients(inputs, torch.ones(1))
            errors = in_sigma(got, truth(inputs, torch.ones(1)), known)["dcum_scores"]
            squares.append(errors.square().mean())
        found.append(float(torch.stack(squares).mean().sqrt()))
    assert found[1] < 2 * found[0]


def test_a_kernel_that_computes_in_float64_has_the_budget_of_what_it_returns() -> None:
    inputs = random_walk({"B": 1, "T": 3000, "C": 2, "K": 3}, projections=True)
    inside = replace(CONTRACT, name="float64 inside", elementwise="float64", accumulate="float64")
    formats = {name: "float32" for name in truth(inputs, torch.ones(1))}
    known = budgets(inputs, torch.ones(1), inside, Derivative.VJP, stored=formats)
    doubles = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
    got = {n: t.float() for n, t in plain.gradients(doubles, torch.ones(1, dtype=torch.float64)).items()}
    true = truth(inputs, torch.ones(1))
    for name, errors in in_sigma(got, true, known).items():
        assert float(errors.max()) < 5.0, name
        if errors.numel() > 100:
            assert 0.7 < float(errors.square().mean().sqrt()) < 1.3, name
    single = in_sigma(plain.gradients(inputs, torch.ones(1)), true, known)
    assert float(single["dcum_scores"].max()) > LIMIT  # float32 inside
    finer = budgets(inputs, torch.ones(1), PRESETS["float64"], Derivative.VJP)
    coarse = budgets(inputs, torch.ones(1), CONTRACT, Derivative.VJP)
    ratio = coarse["dcum_scores"].sigma / finer["dcum_scores"].sigma
    assert 2.0**-8 < float(ratio.median()) * 2.0**-29 < 2.0**-4  # relative to checkpoints and not to the last position


@pytest.mark.parametrize("words", WORDS)
def test_what_is_exact_has_no_budget_and_everything_else_has_one(words: str) -> None:
    own = sample(words, "B=3 T=9 C=3 K=4")
    weights = own.cotangents["log_z"]
    found = budgets(own.inputs, weights, CONTRACT, Derivative.VJP, worst=True)
    for name, budget in found.items():
        assert bool(budget.sigma.isfinite().all()) and bool((budget.errors.isfinite()).all()), name
        exact = (budget.value == 0) | ~budget.value.isfinite()
        if words in ("no positions", "every path forbidden") and name != "log_z":
            assert bool((budget.sigma == 0).all())
        if name != "log_z":
            assert bool((budget.sigma[~exact] > 0).all()), name


def test_an_error_whose_square_underflows_has_a_budget_where_the_value_is_0() -> None:
    """The product of a Hessian where a kernel gives 7.5e-238 and the definition 0: 3e-154 of budget, and no more."""
    zero = torch.zeros(2, dtype=torch.float64)
    errors = torch.tensor([8.1e-237, 0.0], dtype=torch.float64).expand(16, 2)
    known = returned("hvp.duration_bias", zero, zero, errors, errors.square().mean(0).sqrt(), None, "float64")
    assert known.sigma.tolist() == [known.floor[0].item(), 0.0] and 0 < float(known.floor[0]) < 1e-153
    own = Allowance(known.sigma, known.errors, floor=known.floor)
    kept = judge("x", torch.tensor([7.5e-238, 0.0], dtype=torch.float64), zero, own, continuous=True)
    assert kept.outcome is Outcome.HOLDS, kept.message
    for wrong in ([7.5e-238, 7.5e-238], [1e-150, 0.0]):
        found = judge("x", torch.tensor(wrong, dtype=torch.float64), zero, own, continuous=True)
        assert found.outcome is Outcome.VIOLATED


def test_probes_are_the_same_every_time_and_differ_from_one_another() -> None:
    own = sample("all by duration", "B=2 T=9 C=3 K=4")
    one, other = (
        budgets(own.inputs, own.cotangents["log_z"], CONTRACT, Derivative.VJP)["dcum_scores"] for _ in range(2)
    )
    assert torch.equal(one.errors, other.errors) and len(one.errors) == 16
    assert not torch.equal(one.errors[0], one.errors[1])


@pytest.mark.parametrize("kernel", ["gradients", "two_sided"])
def test_roundings_that_line_up_stay_within_the_worst_case(kernel: str) -> None:
    steps = torch.arange(401, dtype=torch.float32)[None, :, None]
    inputs = {
        "cum_scores": (0.7 * steps).expand(1, 401, 2).contiguous(),
        "transition": torch.full((2, 2), 0.3),
        "duration_bias": torch.full((3, 2), -0.1),
        "lengths": torch.tensor([400]),
    }
    known, true = budgets(inputs, torch.ones(1), CONTRACT, Derivative.VJP, worst=True), truth(inputs, torch.ones(1))
    got = getattr(plain, kernel)(inputs, torch.ones(1))
    for name, budget in known.items():
        assert budget.worst is not None
        assert bool(((got[name].double() - true[name]).abs() <= budget.worst).all()), name
        assert float(budget.worst.max()) < 0.01 * float(true[name].abs().max()), name  # which is not idle


@pytest.mark.parametrize("weight", [2.0**-10, 1.0, 2.0**10])
def test_bounds_have_the_logarithm_of_each_probability_whatever_the_cotangent(weight: float) -> None:
    """A gradient is a sum of many small probabilities: each is exp of a logarithm that is off by its size.

    The logarithm of the sum (times the cotangent) is not what it is off by: 2 where each of 24 parts has 5.
    """
    inputs = random_walk({"B": 1, "T": 60, "C": 2, "K": 24}, projections=True, scale=0.1)
    known = budgets(inputs, torch.tensor([weight]), CONTRACT, Derivative.VJP, worst=True)["dproj_start"]
    p = recursion.marginals(inputs).segment
    off = 2.0**-24 * 2 * (p * -p.clamp_min(1e-300).log()).sum(2)  # [B T C], of the logarithm and of the norm
    allowed = Allowance(known.sigma, known.errors, known.worst, known.floor)
    for sign in (1.0, -1.0):
        got = weight * (p.sum(2) + sign * off)
        found = judge("dproj_start", got, known.value, allowed, continuous=False, largest=1e30)
        assert found.outcome is Outcome.HOLDS, found.message
    assert known.worst is not None and bool((known.worst > weight * off).all())
    one = budgets(inputs, torch.ones(1), CONTRACT, Derivative.VJP, worst=True)["dproj_start"].worst
    assert one is not None and torch.allclose(known.worst, weight * one, rtol=1e-9)
    wrong = known.value.clone()
    wrong[0, 7, 1] *= 1.001
    assert judge("dproj_start", wrong, known.value, allowed, continuous=False).outcome is Outcome.VIOLATED


INSIDE = replace(PRESETS["float64"], name="float64 inside", dtype="float32", output="float32")


@pytest.mark.parametrize("sizes", [{"B": 2, "T": 60, "C": 1, "K": 3}, {"B": 2, "T": 60, "C": 3, "K": 1}])
def test_what_cancels_in_a_float64_kernel_is_explained_in_the_log_domain_alone(sizes: dict[str, int]) -> None:
    """Where gradients cancel to 0, what is left is an error of a logarithm as large as what grows between norms.

    The definition adds up weights, so its own order of operations does not show it.
    """
    inputs = random_walk(sizes, scale=3.0, drift=5.0)
    formats = {name: "float32" for name in truth(inputs, torch.ones(2))}
    known = budgets(inputs, torch.ones(2), INSIDE, Derivative.VJP, stored=formats)
    every_step = replace(INSIDE, elementwise="float32")
    doubles = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
    got = plain.two_sided(doubles, torch.ones(2, dtype=torch.float64))
    true = truth(inputs, torch.ones(2))
    for name, errors in in_sigma({n: t.float() for n, t in got.items()}, true, known).items():
        assert float(errors.max()) < LIMIT, name
    single = in_sigma(plain.two_sided(inputs, torch.ones(2)), true, known)
    assert float(single["dcum_scores"].max()) > LIMIT
    assert SemiCRF().budgeted(INSIDE) and not SemiCRF().budgeted(every_step)


def test_bounds_see_scores_that_come_back_between_two_norms() -> None:
    """A float64 kernel has numbers of 100 between checkpoints, 256 positions apart, though none differ at these.

    Heights taken from one checkpoint to the next had made the bound at a period of 256 positions 0.6 of that at 400.
    """
    bounds = {}
    for period in (256, 400):
        inputs = random_walk({"B": 1, "T": 1100, "C": 2, "K": 3}, scale=0.01)
        inputs["cum_scores"] += 50 * (2 * torch.pi / period * torch.arange(1101.0)).sin()[None, :, None]
        known = budgets(inputs, torch.ones(1), PRESETS["float64"], Derivative.VJP, worst=True)["dcum_scores"]
        doubles = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
        got = plain.two_sided(doubles, torch.ones(1, dtype=torch.float64))["dcum_scores"]
        own = Allowance(known.sigma, known.errors, known.worst, known.floor)
        assert judge("dcum_scores", got, known.value, own, continuous=False).outcome is Outcome.HOLDS
        wrong = judge("dcum_scores", got * (1 + 1e-7), known.value, own, continuous=False)
        assert wrong.outcome is Outcome.VIOLATED
        assert known.worst is not None
        bounds[period] = float(known.worst.median())
    assert bounds[256] > 0.8 * bounds[400]


def test_what_is_independent_has_every_partial_sum_of_a_score() -> None:
    """Also where cum_scores change nothing, and durations, transitions, starts and ends are 30."""
    inputs = random_walk({"B": 1, "T": 400, "C": 3, "K": 4}, projections=True)
    large = {n: (30 * t).float() for n, t in inputs.items() if n not in ("cum_scores", "lengths")}
    inputs |= large | {"cum_scores": torch.zeros_like(inputs["cum_scores"])}
    known, true = budgets(inputs, torch.ones(1), CONTRACT, Derivative.VJP), truth(inputs, torch.ones(1))
    got = plain.two_sided(inputs, torch.ones(1))
    for name in ("log_z", "dcum_scores", "dproj_start"):
        error = (got[name].double() - true[name]).abs()
        some = true[name].abs() > 1e-3
        assert float((error / known[name].independent)[some].max()) < 5.0, name
        wrong = true[name] * (1 + 2.0**-10)
        assert float(((wrong - true[name]).abs() / known[name].sigma)[some].max()) > LIMIT, name


def test_equal_numbers_are_returned_alike_in_the_probes() -> None:
    """Probabilities that are all 1, times one cotangent, round the same way in 16 bit: a slope, and no alarm.

    Those that are subtracted round the other way.
    """
    inputs = random_walk({"B": 1, "T": 33, "C": 1, "K": 1}, projections=True)
    weights = torch.tensor([100.594])
    half = replace(INSIDE, dtype="float16", output="float16")
    formats = {"log_z": "float32"} | {f"d{n}": "float16" for n in inputs if n != "lengths"}
    known = budgets(inputs, weights, half, Derivative.VJP, stored=formats)["dproj_start"]
    got = torch.full((1, 33, 1), 100.594).half()
    found = judge("dproj_start", got, known.value, Allowance(known.sigma, known.errors), continuous=True)
    assert found.outcome is Outcome.HOLDS, found.message
    apart = Allowance(known.sigma, torch.zeros_like(known.errors))
    assert judge("dproj_start", got, known.value, apart, continuous=True).outcome is Outcome.VIOLATED
    wrong = judge("dproj_start", got * 1.01, known.value, Allowance(known.sigma, known.errors), continuous=True)
    assert wrong.outcome is Outcome.VIOLATED
    both = truth(random_walk({"B": 1, "T": 300, "C": 3, "K": 4}, scale=60.0), torch.ones(1))["dcum_scores"]
    assert float((both.abs() > 0.999).double().mean()) > 0.3  # 1 and -1 to many digits
    inputs = random_walk({"B": 1, "T": 300, "C": 3, "K": 4}, scale=60.0)
    known = budgets(inputs, weights, half, Derivative.VJP, stored=formats)["dcum_scores"]
    own = Allowance(known.sigma, known.errors, floor=known.floor)
    found = judge("dcum_scores", known.value.half(), known.value, own, continuous=True)
    assert found.outcome is Outcome.HOLDS, found.message
