"""The definition of the semi-CRF: right path by path, alike in every reading, without NaN where -inf forbids."""

from __future__ import annotations

import itertools

import pytest
import torch
from gradoracle.properties.semicrf import FAMILY as semicrf
from gradoracle.properties.semicrf import KERNELS
from gradoracle.properties.semicrf.enumeration import enumerate_paths, numbers
from mpmath import mp
from sweeps import covering
from torch import Tensor

from gradoracle.cases.coverage import goals_of, wanted_goals
from gradoracle.cases.stream import stream
from gradoracle.model.contract import PRESETS
from gradoracle.model.derivative import Derivative
from gradoracle.model.kernel import Kernel
from gradoracle.oracle.truth import Oracle, names
from tests.properties.semicrf.samples import WORDS, apart, as_mpf, defined, sample

SIZES = ["B=2 T=1 C=1 K=1", "B=2 T=1 C=3 K=4", "B=2 T=4 C=3 K=1", "B=3 T=5 C=2 K=4", "B=2 T=3 C=2 K=4"]


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_definition_is_the_sum_over_all_paths(words: str, sizes: str) -> None:
    own = sample(words, sizes)
    paths = enumerate_paths(own.inputs)
    cotangent = own.cotangents["log_z"]
    found = defined(own, Derivative.VJP)
    expected = {"log_z": numbers(paths.log_z)}
    expected |= {f"d{name}": numbers(x) for name, x in paths.gradients(cotangent).items()}
    assert set(expected) == set(found)
    for name, tensor in expected.items():
        assert apart(found[name], tensor) < 1e-12, name
    assert apart(defined(own, Derivative.JVP)["jvp.log_z"], numbers(paths.jvp(own.tangents))) < 1e-12
    products = defined(own, Derivative.HVP)
    for name, exact in paths.hvp(own.tangents, cotangent).items():
        assert apart(products[f"hvp.{name}"], numbers(exact)) < 1e-11, name


def test_balls_of_radius_1e_30_hold_what_enumeration_finds() -> None:
    own = sample("all by duration", "B=2 T=5 C=2 K=3")
    paths = enumerate_paths(own.inputs, digits=60)
    gradients = paths.gradients(own.cotangents["log_z"])
    expected = {"log_z": paths.log_z} | {f"d{name}": x for name, x in gradients.items()}
    with mp.workdps(60):
        for name, ball in defined(own, Derivative.VJP, "certified").items():
            radius = as_mpf(ball) - expected[name]
            assert float(ball.radius.max()) <= 1e-30
            assert max(abs(float(gap)) for gap in radius.reshape(-1)) < 1e-29, name


@pytest.mark.parametrize("name", ["duration_bias", "lengths", "proj_start", "transition_by_duration"])
def test_an_index_that_is_off_by_one_is_seen(name: str) -> None:
    own = sample("all by duration", "B=2 T=5 C=2 K=3")
    assert int(own.inputs["lengths"].max()) > 1
    one_off: Tensor = own.inputs[name].roll(1, -2) if name != "lengths" else (own.inputs[name] - 1).clamp_min(0)
    if name == "transition_by_duration":
        one_off = own.inputs[name].roll(1, 0)
    log_z = numbers(enumerate_paths(own.inputs).log_z)
    assert apart(defined(own, Derivative.FORWARD)["log_z"], log_z) < 1e-12
    assert apart(defined(own, Derivative.FORWARD, **{name: one_off})["log_z"], log_z) > 1e-2


@pytest.mark.parametrize(
    ("words", "derivative", "reading"),
    covering(itertools.product(WORDS, Derivative, ("float64", "certified", "mpmath"))),
)
def test_every_reading_gives_the_same_and_a_budget(words: str, derivative: Derivative, reading: str) -> None:
    own, contract = sample(words), PRESETS["ieee32"]
    budgets = Oracle(semicrf).budgets(own, derivative, contract, worst=True, probes=4)
    truths = Oracle(semicrf, reading).truth(own, derivative, budgets, contract)
    plain = defined(own, derivative)
    for name, truth in truths.items():
        assert apart(truth.value, plain[name]) < 1e-12, name
        assert truth.undecided is None or not bool(truth.undecided.any())
        budget = budgets[name]
        known = budget.value.isfinite()
        assert bool(budget.sigma.isfinite().all()) and bool((budget.worst >= budget.sigma)[known].all())
        assert bool((budget.sigma[known & (budget.value.abs() > 1e-3)] > 0).all()), name


@pytest.mark.parametrize("derivative", list(Derivative))
def test_where_every_path_is_forbidden_log_z_is_minus_infinity_and_all_derivatives_are_0(
    derivative: Derivative,
) -> None:
    own = sample("every path forbidden")
    assert int(own.inputs["lengths"].min()) > 0
    found = defined(own, derivative)
    for name in names(semicrf, derivative, own):
        expected = -torch.inf if name == "log_z" else 0.0
        assert bool((found[name] == expected).all()), name


def test_length_0_gives_log_c_and_no_gradient() -> None:
    found = defined(sample("no positions", "B=2 T=6 C=3 K=2"), Derivative.VJP)
    assert apart(found.pop("log_z"), torch.full((2,), 3.0, dtype=torch.float64).log()) < 1e-15
    assert all(bool((gradient == 0).all()) for gradient in found.values())


def test_nan_in_gives_nan_out_for_that_sequence_alone() -> None:
    own = sample("full lengths")
    broken = own.inputs["cum_scores"].clone()
    broken[1, 2, 0] = torch.nan
    log_z = defined(own, Derivative.FORWARD, cum_scores=broken)["log_z"]
    assert log_z.isnan().tolist() == [False, True]


def test_cases_meet_every_goal_with_either_transition() -> None:
    kernel = Kernel("semicrf", "semicrf", semicrf.definition, dtypes=("float32",))
    drawn = list(stream(semicrf, kernel, dtypes=("float32",), examples=150))
    met = {name for case in drawn for name in goals_of(semicrf, kernel, case)}
    expected = set(wanted_goals(semicrf, kernel, ("float32",), len(drawn)))
    assert expected <= met
    assert {"joint every path forbidden", "joint no positions", "transition given", "T > 100 000"} <= expected


def test_long_cases_have_several_durations_and_labels_and_reach_the_end() -> None:
    long = [
        case
        for seed in range(4)
        for case in stream(semicrf, KERNELS[0], examples=126, seed=seed)
        if case.dims["T"] > 320
    ]
    assert long
    for case in long:
        assert case.dims["T"] > 100_000 and case.dims["K"] >= 3 and case.dims["C"] >= 3
        assert (case.draws["lengths"].recipe, case.draws["cum_scores"].recipe) == ("highest", "normal:10")
