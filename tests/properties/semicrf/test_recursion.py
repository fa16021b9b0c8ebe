"""The float64 recursion of the semi-CRF against definition, enumeration and balls; what it says where it cannot run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gradoracle.properties.semicrf.enumeration import enumerate_paths, numbers
from gradoracle.properties.semicrf.readings import recursion as recursion
from gradoracle.properties.semicrf.readings.balls import certify
from torch import Tensor

from gradoracle.model.derivative import Derivative
from gradoracle.model.machine_code import HAS_NUMBA
from tests.properties.semicrf.samples import WORDS, apart, defined, random_walk, sample

SIZES = ["B=2 T=1 C=1 K=1", "B=2 T=1 C=3 K=4", "B=3 T=7 C=3 K=1", "B=3 T=12 C=2 K=5", "B=2 T=9 C=3 K=12"]
LONG = {
    "plain": ({"B": 2, "T": 3000, "C": 3, "K": 4}, {"lengths": [3000, 1777]}),
    "by duration": ({"B": 1, "T": 2000, "C": 2, "K": 5}, {"by_duration": True}),
    "projections": ({"B": 2, "T": 2000, "C": 3, "K": 3}, {"projections": True, "lengths": [2000, 3]}),
    "all by duration": ({"B": 1, "T": 1500, "C": 3, "K": 3}, {"by_duration": True, "projections": True}),
    "log Z beyond 1e6": ({"B": 1, "T": 2000, "C": 3, "K": 4}, {"scale": 10.0, "drift": 2000.0}),
    "far apart labels": ({"B": 1, "T": 1000, "C": 3, "K": 4}, {"scale": 300.0}),
}


def compare(inputs: dict[str, Tensor], cotangent: Tensor) -> float:
    """The largest relative difference between recursion and balls, over log Z and all gradients."""
    found = recursion.run(recursion.Problem(inputs), cotangent)
    true = certify(inputs, cotangent)
    gap = true.log_z.error(found.log_z).abs() / true.log_z.high.abs()
    worst = float(gap.max())
    for name, ball in true.gradients.items():
        size = float(ball.high.abs().max())
        worst = max(worst, float((ball.error(found.gradients[name]).abs() / size).max()))
        assert float(ball.radius.max()) <= 1e-25 * size
    return worst


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_log_z_gradients_jvp_and_hvp_are_those_of_the_definition(words: str, sizes: str) -> None:
    own = sample(words, sizes, seed=3)
    cotangent, vjp = own.cotangents["log_z"], defined(own, Derivative.VJP)
    found = recursion.run(recursion.Problem(own.inputs), cotangent)
    assert apart(found.log_z, vjp["log_z"]) < 1e-13
    for name, gradient in found.gradients.items():
        assert apart(gradient, vjp[f"d{name}"]) < 1e-13, name
    assert apart(recursion.jvp(own.inputs, own.tangents), defined(own, Derivative.JVP)["jvp.log_z"]) < 1e-12
    products = defined(own, Derivative.HVP)
    for name, product in recursion.hvp(own.inputs, own.tangents, cotangent).items():
        assert apart(product, products[f"hvp.{name}"]) < 1e-12, name


@pytest.mark.parametrize("name", LONG)
def test_long_sequences_agree_with_balls(name: str) -> None:
    sizes, options = LONG[name]
    inputs = random_walk(sizes, **options)  # type: ignore[arg-type]
    cotangent = torch.linspace(-0.5, 1.5, sizes["B"])
    assert compare(inputs, cotangent) < 1e-12
    if name == "log Z beyond 1e6":
        assert float(recursion.log_z(inputs)) > 1e6


@pytest.mark.parametrize("changed", ["duration_bias", "cum_scores", "lengths", "transition"])
def test_an_index_that_is_off_by_one_is_far_from_the_balls(changed: str) -> None:
    inputs = random_walk({"B": 1, "T": 500, "C": 3, "K": 4})
    true = certify(inputs)
    one_off = inputs[changed] - 1 if changed == "lengths" else inputs[changed].roll(1, -2)
    found = recursion.run(recursion.Problem(inputs | {changed: one_off}), torch.ones(1))
    assert abs(float(found.log_z) - float(true.log_z.high)) > 1e-2
    assert all(apart(found.gradients[name], ball.high) > 1e-3 for name, ball in true.gradients.items())


def test_hvp_of_a_long_sequence_is_symmetric_and_a_difference_of_gradients() -> None:
    inputs = random_walk({"B": 1, "T": 400, "C": 3, "K": 4}, projections=True)
    doubles = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
    generator = torch.Generator().manual_seed(5)
    u, v = (
        {n: torch.randn(t.shape, generator=generator).double() for n, t in doubles.items() if n != "lengths"}
        for _ in range(2)
    )
    g, h = torch.tensor([0.7]), 1e-5
    hu, hv = (recursion.hvp(doubles, moved, g) for moved in (u, v))
    inner = [float(sum((a[n] * b[n]).sum() for n in a)) for a, b in ((u, hv), (v, hu))]
    assert abs(inner[0] - inner[1]) < 1e-10 * abs(inner[0])
    ends = [recursion.gradients({n: t + s * h * u[n] if n in u else t for n, t in doubles.items()}, g) for s in (1, -1)]
    for name, product in hu.items():
        difference = (ends[0][name] - ends[1][name]) / (2 * h)
        assert apart(product, difference) < 1e-6 * float(product.abs().max()), name
    gradients = recursion.gradients(doubles, torch.ones(1))
    slope = float(sum((gradients[n] * u[n]).sum() for n in u))
    assert abs(float(recursion.jvp(doubles, u)) - slope) < 1e-12 * abs(slope)


def test_a_sequence_does_not_depend_on_the_others_nor_on_what_is_past_its_length() -> None:
    inputs = random_walk({"B": 3, "T": 40, "C": 2, "K": 3}, projections=True, lengths=[40, 0, 17])
    both = recursion.run(recursion.Problem(inputs), torch.ones(3))
    alone = {n: t[2:, :18] if n == "cum_scores" else t for n, t in inputs.items()}
    alone |= {n: inputs[n][2:, :17] for n in ("proj_start", "proj_end")} | {"lengths": inputs["lengths"][2:].int()}
    one = recursion.run(recursion.Problem(alone), torch.ones(1))
    assert float(one.log_z) == float(both.log_z[2])
    assert torch.equal(both.gradients["cum_scores"][2, :18], one.gradients["cum_scores"][0])
    assert bool((both.gradients["cum_scores"][2, 18:] == 0).all()) and bool((both.gradients["proj_end"][1] == 0).all())
    assert abs(float(both.log_z[1]) - torch.tensor(2.0).double().log()) < 1e-15


@pytest.mark.parametrize("words", ["projections", "forbidden", "all by duration", "no positions"])
def test_marginals_are_those_of_all_paths(words: str) -> None:
    own = sample(words, "B=2 T=5 C=2 K=3")
    paths, found = enumerate_paths(own.inputs), recursion.marginals(own.inputs)
    for b in range(2):
        expected = torch.zeros_like(found.segment[b])
        for (t, k, _, c), p in paths.marginals(b).items():
            expected[t, k - 1, c] += float(p)
        assert apart(found.segment[b], expected) < 1e-14
        assert apart(found.start[b], expected.sum(1)) < 1e-14
        length = int(own.inputs["lengths"][b])
        assert found.boundary[b, 0] == 1 and abs(float(found.boundary[b, length]) - 1) < 1e-14
        assert apart(found.boundary[b, 1:], found.end[b].sum(-1)) < 1e-14 or length == 0
    assert apart(found.segment.sum((1, 2, 3)), numbers(paths.expected_segments())) < 1e-13


def test_every_position_is_covered_once_and_alpha_meets_beta_at_every_boundary() -> None:
    inputs = random_walk({"B": 2, "T": 300, "C": 3, "K": 7}, by_duration=True, lengths=[300, 111])
    found, both = recursion.marginals(inputs), recursion.forward_backward(inputs)
    for b, length in enumerate([300, 111]):
        covered = torch.zeros(300, dtype=torch.float64)
        for k in range(1, 8):
            for shift in range(k):
                covered[shift:] += found.segment[b, : 300 - shift, k - 1].sum(-1)
        expected = (torch.arange(300) < length).double()
        assert apart(covered, expected) < 1e-12
        met = (both.alpha[b] * both.beta[b]).sum(-1).log() + both.alpha_norm[b] + both.beta_norm[b]
        identity = both.log_z[b] + found.boundary[b].log()
        assert apart(met[1 : length + 1], identity[1 : length + 1]) < 1e-11
        assert bool((met[length + 1 :] == -torch.inf).all()) and bool((both.alpha[b, length + 1 :] == 0).all())
        assert float((identity - both.log_z[b])[1:length].min()) < -0.01  # log Z alone is wrong for K > 1


def test_nan_in_gives_nan_out_for_that_sequence_alone() -> None:
    inputs = random_walk({"B": 2, "T": 30, "C": 2, "K": 3})
    inputs["cum_scores"][0, 7, 1] = torch.nan
    found = recursion.run(recursion.Problem(inputs), torch.ones(2))
    assert found.log_z.isnan().tolist() == [True, False]
    assert bool(found.gradients["cum_scores"][0].isnan().any())
    assert bool(found.gradients["cum_scores"][1].isfinite().all())


def test_scores_beyond_what_exponents_hold_are_refused() -> None:
    inputs = random_walk({"B": 1, "T": 3, "C": 2, "K": 2})
    inputs["duration_bias"][0, 0] = -1e10
    with pytest.raises(
        ValueError, match=r"duration_bias holds 1e\+10; the float64 recursion takes scores up to 4\.29e"
    ):
        recursion.log_z(inputs)


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
sys.path.insert(0, {tests!r})
from tests.properties.semicrf.samples import random_walk
from gradoracle.properties.semicrf.readings import recursion as recursion
import torch
inputs = random_walk({{"B": 2, "T": 20, "C": 2, "K": 3}}, projections=True)
tangents = {{n: t.flip(0).cos() for n, t in inputs.items() if n != "lengths"}}
torch.save([recursion.gradients(inputs, torch.ones(2)), recursion.hvp(inputs, tangents, torch.ones(2))], {saved!r})
try:
    recursion.log_z(random_walk({{"B": 1, "T": 200_000, "C": 4, "K": 4}}))
except ValueError as error:
    print(error)
"""


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is missing, so every test here runs without it")
def test_without_numba_it_gives_the_same_and_refuses_what_would_take_minutes(tmp_path: Path) -> None:
    saved = str(tmp_path / "plain.pt")
    script = WITHOUT_NUMBA.format(tests=str(Path(__file__).parents[3]), saved=saved)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "needs numba" in done.stdout
    inputs = random_walk({"B": 2, "T": 20, "C": 2, "K": 3}, projections=True)
    tangents = {n: t.flip(0).cos() for n, t in inputs.items() if n != "lengths"}
    compiled = [recursion.gradients(inputs, torch.ones(2)), recursion.hvp(inputs, tangents, torch.ones(2))]
    for one, other in zip(compiled, torch.load(saved), strict=True):
        assert max(apart(one[name], other[name]) for name in one) < 1e-14


@pytest.mark.parametrize("words", ["C=1 K=1 transition~normal", "C=2 K=2 one path", "C=1 K=3 transition~normal"])
def test_what_no_score_can_change_has_derivatives_of_exactly_0(words: str) -> None:
    """One path alone has no Hessian; of one label what ends at a place is what begins there. Others do have one."""
    sizes = {name: int(number) for name, number in (each.split("=") for each in words.split()[:2])}
    inputs = random_walk({"B": 2, "T": 300, **sizes}, projections=True, lengths=[300, 117])
    if words.endswith("one path"):  # of durations of 1 and labels that stay what the first one is, which has to be 1
        inputs["duration_bias"][1] = -torch.inf
        inputs["transition"] = torch.tensor([[0.3, -torch.inf], [-torch.inf, -torch.inf]])
    generator = torch.Generator().manual_seed(1)
    tangents = {n: torch.randn(t.shape, generator=generator) for n, t in inputs.items() if n != "lengths"}
    found, once = recursion.hvp(inputs, tangents, torch.ones(2)), recursion.gradients(inputs, torch.ones(2))
    fixed = words != "C=1 K=3 transition~normal"
    for name, product in found.items():
        assert bool((product == 0).all()) == (fixed or name == "cum_scores"), name
    expected = torch.zeros(2, 301, dtype=torch.float64)
    expected[:, 0], expected[0, 300], expected[1, 117] = -1.0, 1.0, 1.0
    assert apart(once["cum_scores"][:, :, 0], expected) < 1e-13
    inputs["transition"] = torch.zeros_like(inputs["transition"])
    inputs["duration_bias"] = torch.zeros(2, sizes["C"])  # there is another path now
    tangents["duration_bias"] = torch.tensor([[1.0], [-1.0]]).expand(2, sizes["C"]).contiguous()
    others = recursion.hvp(inputs, tangents, torch.ones(2))
    assert all(bool((product != 0).any()) for name, product in others.items() if name != "cum_scores")
