"""Budgets: what they are made of, where they are zero, what underflow and overflow do to them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from correct_kernels import budgets_of, fused, in_sigma, normal
from forward_budget import budget_of, outcome, random
from torch import Tensor

from gradoracle.model.contract import EXACT, PRESETS, contract, default_contract, representable
from gradoracle.model.derivative import Derivative, program
from gradoracle.model.finding import Outcome
from gradoracle.model.formats import FORMATS
from gradoracle.oracle.exact import certified, multiprecision
from gradoracle.oracle.exact.trace import trace
from gradoracle.oracle.rounding.annotations import fast_exp
from gradoracle.oracle.rounding.probes import Dice, rounding_errors
from gradoracle.oracle.rounding.reading import budgets

# ---- contracts ----


def test_presets_by_dtype() -> None:
    assert [default_contract(d).name for d in ("float32", "bfloat16", "float16", "float64")] == [
        "ieee32", "bf16", "fp16", "float64",
    ]  # fmt: skip
    assert contract("tf32", "float32").truncate and contract("eager-bf16", "bfloat16").store_all
    for name, preset in PRESETS.items():
        assert preset.name == name and contract(name, preset.dtype) is preset


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("tf33", "float32", "'tf33'; .*: ieee32, bf16x6, tf32x3"),
        ("bf16", "float32", "'bf16' is for bfloat16"),
        ("ieee32", "int8", "no preset fits dtype 'int8'"),
    ],
)
def test_a_contract_that_does_not_fit_is_refused(name: str, dtype: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        contract(name, dtype)
    with pytest.raises(ValueError, match="dtype 'int8'"):
        default_contract("int8")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_formats_are_those_of_torch(dtype: str) -> None:
    info = torch.finfo(getattr(torch, dtype))
    assert FORMATS[dtype].unit_roundoff == info.eps / 2
    assert FORMATS[dtype].smallest_normal == info.smallest_normal
    assert FORMATS[dtype].largest == info.max
    assert FORMATS[dtype].smallest_subnormal == info.smallest_normal * info.eps
    for number in (1.0, 0.1, 1 / 3, 0.75, 257.0, 1 + info.eps, 1 + info.eps / 2):
        assert representable(number, dtype) == (float(torch.tensor(number, dtype=getattr(torch, dtype))) == number)


# ---- single roundings ----


@pytest.mark.parametrize("preset", ["bf16", "fp16", "ieee32"])
def test_an_output_errs_by_half_its_spacing(preset: str) -> None:
    x = random(1000).abs() * random(1000, seed=1).abs() + 0.01
    x64 = x * (1 + 1e-9)  # not held by the inputs' format
    budget = budget_of(lambda x: x * 1.0000001, x64, preset=preset, worst=True)
    rounded = budget.value.to(getattr(torch, PRESETS[preset].output)).double()
    unit = FORMATS[PRESETS[preset].output].unit_roundoff
    spacing = torch.exp2(torch.floor(torch.log2(budget.value.abs()))) * 2 * unit
    error = (rounded - budget.value).abs()
    assert budget.worst is not None and (error <= budget.worst).all()
    assert ((budget.independent >= spacing / 12**0.5) & (budget.independent < spacing)).all()
    if preset != "ieee32":
        assert float((error / budget.sigma).square().mean().sqrt()) == pytest.approx(1, abs=0.1)


def test_inputs_views_and_powers_of_two_are_exact() -> None:
    x = random(3, 4)
    exact = (lambda x: x.T, lambda x: -4 * x, lambda x: x[1:].repeat(2, 1), lambda x: x.relu() / 16, torch.clone)
    for function in exact:
        budget = budget_of(function, x, worst=True)
        assert not budget.sigma.any() and budget.worst is not None and not budget.worst.any()
    assert budget_of(lambda x: 3 * x, x).sigma.all()
    root = budget_of(lambda x: x / 8, x)  # exact as it is, but kernels multiply two operands by its root
    assert root.sigma.all() and float((root.sigma / root.value.abs()).max()) < 2.0**-24


@pytest.mark.parametrize(("preset", "size"), [("bf16", 2.0**-8), ("fp16", 2.0**-11), ("tf32", 2.0**-11)])
def test_operands_are_rounded_unless_they_are_inputs(preset: str, size: float) -> None:
    x, y = random(16, 16).to(torch.bfloat16).double(), random(16, 16, seed=1).to(torch.bfloat16).double()
    as_float32 = [replace(PRESETS[preset], output="float32")]
    of_inputs = budgets(trace(lambda x, y: (x @ y,), x, y), [x, y], as_float32[0])[0]
    scaled = budgets(trace(lambda x, y: (4 * x.T @ y,), x, y), [x, y], as_float32[0])[0]
    computed = budgets(trace(lambda x, y: ((x * 1.1) @ y,), x, y), [x, y], as_float32[0])[0]
    wide = float((computed.sigma / computed.value.abs()).median())
    assert size / 4 < wide < 4 * size
    for budget in (of_inputs, scaled):
        small = float((budget.sigma / budget.value.abs()).median())
        assert small > size / 4 if preset == "tf32" else small < 1e-6


def test_equal_values_err_alike_and_others_do_not() -> None:
    key = torch.cat([torch.full((100,), 0.3), torch.full((100,), -0.3), random(800)]).double() / 3
    errors = rounding_errors(key, 24, Dice(0, range(16)).factors(5), torch.full_like(key, 2.0**-24)) * 2.0**24
    assert errors.shape == (16, 1000) and float(errors.abs().max()) <= 1
    assert (errors[:, :100] == errors[:, :1]).all() and torch.allclose(errors[:, 100:200], errors[:, :1])
    assert errors[:, 0].std() > 0.2  # but not from probe to probe
    correlation = torch.corrcoef(errors[:, 200:].T)
    pairs = correlation[torch.ones_like(correlation, dtype=torch.bool).triu(1)]
    assert float(pairs.abs().mean()) == pytest.approx(0.2, abs=0.03)  # that of 16 independent draws
    assert float(errors[:, 200:].square().mean()) == pytest.approx(3 / (8 * math.log(2)) / 3, rel=0.05)


def test_values_closer_than_the_spacing_err_alike() -> None:
    near = 0.3 * (1 + 1e-4 * torch.rand(200, dtype=torch.float64))
    rows = rounding_errors(near, 8, Dice(0, range(64)).factors(1), torch.full_like(near, 2.0**-8)) * 2.0**8
    assert float(rows.std(1).median()) < 0.05 < float(rows.std(0).min())


def test_one_probe_rounds_what_stands_there() -> None:
    """bfloat16 has 128 significands: times 255/128 their roundings lean one way, as with hardly any other factor."""
    g, k = normal((4000, 1, 1), torch.bfloat16)[0].flatten(), torch.tensor(255 / 128)
    args = [g.double(), k.double()]
    (budget,) = budgets(trace(lambda a, b: (a * b,), *args), args, PRESETS["bf16"])
    weight = budget.sigma**-2

    def slope(error: Tensor) -> float:
        return float((error * budget.value * weight).sum() / (budget.value**2 * weight).sum())

    right = (g * k.bfloat16()).double()
    drawn = torch.tensor([slope(error) for error in budget.errors[1:]])
    assert abs(slope(right - budget.value)) > 8 * float(drawn.square().mean().sqrt()), "the case needs no such probe"
    assert outcome(right, budget)[0] is Outcome.HOLDS
    assert outcome((right * (1 + 2.0**-8)).bfloat16().double(), budget) == (Outcome.VIOLATED, "bias")


def test_probes_depend_on_nothing_but_the_seed() -> None:
    inputs = normal((9, 7, 4), torch.bfloat16)
    one, two = budgets_of(inputs)[1], budgets_of(inputs)[1]
    assert torch.equal(one.errors, two.errors)
    few = budgets_of(inputs, probes=4)[1]
    torch.testing.assert_close(few.errors, one.errors[: 4 + 2], rtol=1e-9, atol=1e-15)


# ---- sums ----


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("terms", [2, 30, 3000])
def test_a_running_sum_in_any_order(terms: int, positive: bool) -> None:
    x = random(50, terms)
    x = x.abs() if positive else x
    budget = budget_of(lambda x: x.sum(-1), x, worst=True)
    orders = [torch.arange(terms), torch.arange(terms).flip(0), torch.randperm(terms)]
    sums = [sum(x.float()[:, order].unbind(-1), torch.zeros(50)) for order in orders] + [x.float().sum(-1)]
    for got in sums:
        error = (got.double() - budget.value).abs()
        assert budget.worst is not None and (error <= budget.worst).all() and (error <= 8 * budget.sigma).all()
    naive = (sums[0].double() - budget.value) / budget.sigma
    assert 0.1 < float(naive.square().mean().sqrt()) < 2


def test_a_shared_error_grows_with_the_axis_it_is_summed_over() -> None:
    x, y = random(1, 400).abs(), random(400, 1).abs()
    budget = budget_of(lambda x, y: (x.sum() * 1.1 * y).sum(0), x, y, preset="bf16")
    assert float(budget.sigma) > 0
    z = budget_of(lambda x, y: ((x.sum(1, keepdim=True) * 1.1).sin() @ x * y).sum(0), x, y, preset="eager-bf16")
    assert float((z.errors.square().mean(0).sqrt() / z.independent).median()) > 2


# ---- masks, zeros, branches ----


def test_masked_entries_carry_no_error() -> None:
    x = random(6, 8)
    mask = torch.ones(6, 8, dtype=torch.bool).tril(1)
    for fill in (-torch.inf, 0.0):
        budget = budget_of(lambda x, f=fill: torch.where(mask, 1.1 * x, f), x, worst=True)
        assert not budget.sigma[~mask].any() and budget.sigma[mask].all()
        assert budget.worst is not None and not budget.worst[~mask].any() and not budget.errors[:, ~mask].any()
    soft = budget_of(lambda x: torch.softmax(torch.where(mask, 1.1 * x, -torch.inf), -1), x, worst=True)
    assert not soft.sigma[~mask].any() and soft.sigma[mask].all() and soft.sigma.isfinite().all()


def test_a_row_without_a_key_is_exactly_zero() -> None:
    x = random(4, 5)
    seen = torch.tensor([True, False, True, True])[:, None]

    def function(x: Tensor) -> Tensor:
        s = torch.where(seen, 1.1 * x, -torch.inf)
        return torch.where(seen, torch.softmax(s, -1), 0.0)

    graph = trace(program(function, Derivative.VJP, 1), x, x)
    for budget in budgets(graph, [x, x], PRESETS["ieee32"], worst=True):
        assert not budget.value[1].any() and not budget.sigma[1].any() and budget.sigma[0].all()
        assert budget.sigma.isfinite().all() and budget.worst is not None and budget.worst.isfinite().all()


def test_what_cancels_exactly_in_truth_may_err_in_a_kernel() -> None:
    inputs = normal((1, 1, 8), torch.float32)
    for z_from, algorithm in (("P", "definition"), ("O", "flash")):
        found = budgets_of(inputs, algorithm=algorithm)
        for got, budget in zip(fused(*inputs, z_from=z_from)[1:3], found[1:3], strict=True):
            assert float(budget.value.abs().max()) < 1e-14 < 1e-10 < float(budget.sigma.min())
            assert in_sigma(got, budget) <= 8


def test_a_branch_that_rounding_may_turn() -> None:
    x = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64)
    edge = 3.0 * 1.1

    def function(x: Tensor) -> Tensor:
        y = x * 1.1
        return torch.where(y > edge, y + 1, y)

    shifted = budget_of(lambda x: function(x * (1 + 1e-8)), x, worst=True)
    assert shifted.worst is not None
    assert float(shifted.sigma[1]) > 0.5 < float(shifted.worst[1])
    assert float(shifted.sigma[[0, 2]].max()) < 1e-5


def test_logits_that_may_change_places() -> None:
    s = torch.tensor([[0.0, -60.0]], dtype=torch.float64)
    graph = trace(lambda s: (torch.softmax(s, -1),), s)
    errs = [(torch.full_like(s, 100.0), None, torch.zeros(16, 1, 2, dtype=torch.float64))]
    assert float(budgets(graph, [s], EXACT, input_errors=errs)[0].sigma.min()) > 0.1
    errs = [(torch.full_like(s, 1.0), None, torch.zeros(16, 1, 2, dtype=torch.float64))]
    assert float(budgets(graph, [s], EXACT, input_errors=errs)[0].sigma.max()) < 1e-10


# ---- underflow, overflow ----


def test_underflow_is_an_absolute_floor() -> None:
    x = torch.tensor([-1.0, -9.0, -15.0, -25.0, -40.0], dtype=torch.float64)
    budget = budget_of(torch.exp, x, preset="fp16")
    assert (budget.sigma >= budget.floor).all() and not budget.floor[0]
    got = torch.exp(x).half().double()
    error = (got - budget.value).abs()
    assert (error <= 2 * budget.sigma).all()
    assert float(budget.floor[1]) <= 2.0**-25  # subnormal: half a spacing at most
    assert float(budget.floor[4]) == pytest.approx(float(budget.value[4]), rel=1e-6)  # lost: the value itself


@pytest.mark.parametrize("flush", [True, False])
def test_float32_may_flush_to_zero(flush: bool) -> None:
    x = torch.tensor([-87.0, -92.0, -101.0, -120.0], dtype=torch.float64)
    own = replace(PRESETS["ieee32"], flush_to_zero=flush)
    budget = budgets(trace(lambda x: (torch.exp(x),), x), [x], own, worst=True)[0]
    gradual = (torch.exp(x).float().double() - budget.value).abs()
    assert (gradual <= 8 * budget.sigma).all() and budget.worst is not None and (gradual <= budget.worst).all()
    lost = budget.value.abs()
    assert bool((lost[1:] <= 8 * budget.sigma[1:]).all()) == flush


def test_many_small_probabilities_are_lost_together() -> None:
    s = torch.cat([torch.zeros(1, 1), torch.full((1, 4000), -17.9)], 1).double() + 1e-3 * random(1, 4001)
    v = torch.ones(4001, 1, dtype=torch.float64)
    budget = budget_of(lambda s, v: torch.softmax(s, -1) @ v, s, v, preset="fp16")
    p = torch.softmax(s.float(), -1)
    got = (p.half().float() @ v.float()).half()
    assert in_sigma(got, budget) <= 8


def test_overflow_of_an_operand_is_visible_and_only_there() -> None:
    x = torch.full((3, 4), 300.0, dtype=torch.float64)
    x[0] = 1.0
    y = torch.full((4, 2), 1e-3, dtype=torch.float64)
    budget = budget_of(lambda x, y: (x * x * 1.1) @ y, x, y, preset="fp16")
    assert budget.overflow is not None and budget.overflow.tolist() == [[False] * 2, [True] * 2, [True] * 2]
    assert budget_of(lambda x, y: (x * x * 1.1) @ y, x, y, preset="bf16").overflow is None
    assert budget_of(lambda x, y: (x * 1.1) @ y, x, y, preset="fp16").overflow is None


def test_an_output_that_overflows_in_truth_is_no_intermediate() -> None:
    x = torch.tensor([1.0, 60000.0], dtype=torch.float64)
    assert budget_of(lambda x: x * 3, x, preset="fp16").overflow is None
    eager = budget_of(lambda x: x * 3 / 5, x, preset="eager-fp16").overflow
    assert eager is not None and eager.tolist() == [False, True]


# ---- properties and algorithms ----


def test_a_property_reads_the_errors_of_its_inputs() -> None:
    x, y = random(5), random(5, seed=1)
    errors = 1e-3 * random(16, 5, seed=2)
    own = [(torch.full((5,), 1e-6, dtype=torch.float64), torch.full((5,), 4e-3, dtype=torch.float64), errors), None]
    graph = trace(lambda x, y: ((x * y).sum(),), x, y)
    budget = budgets(graph, [x, y], EXACT, worst=True, input_errors=own)[0]
    assert torch.allclose(budget.independent, 1e-3 * y.square().sum().sqrt())
    assert torch.allclose(budget.errors, (errors * y).sum(-1))
    assert budget.worst is not None and float(budget.worst) >= float(4e-3 * y.abs().sum()) * (1 - 1e-12)
    nothing = budgets(graph, [x, y], EXACT)[0]
    assert not nothing.sigma.any() and not nothing.errors.any()


def test_a_ramp_drifts_further_than_a_random_order() -> None:
    """Terms in order of size: the partial sums are far larger than a random walk's, and than the sum."""
    x = torch.linspace(-1, 1, 2001, dtype=torch.float64).expand(20, -1) + 1e-2 * random(20, 2001)
    x = x.float().double()
    shuffled = x[:, torch.randperm(2001, generator=torch.Generator().manual_seed(0))]
    ramp, mixed = (budget_of(lambda x: x.sum(-1), y) for y in (x, shuffled))
    assert float((ramp.sigma / mixed.sigma).median()) > 5
    got = sum(x.float().unbind(-1), torch.zeros(20))
    assert in_sigma(got, ramp) <= 8 < in_sigma(got, mixed)


def test_subnormal_inputs_may_be_read_as_zero() -> None:
    x = torch.tensor([1e-40, 1.0], dtype=torch.float64)
    budget = budget_of(lambda x: x * 2.0**100, x, worst=True)
    assert float(budget.sigma[0]) >= float(budget.value[0]) / 8 and not budget.sigma[1]
    assert not budget_of(lambda x: x * 2.0**100, x, preset="float64").sigma.any()


def test_a_power_of_two_is_not_exact_below_the_normal_numbers() -> None:
    x = torch.tensor([2.0**-14 * 1.25, 2.0**-22 * 1.25, 1.25], dtype=torch.float64)
    budget = budget_of(lambda x: x / 16, x, preset="eager-fp16", worst=True)
    error = (x.half() / 16).double() - budget.value
    assert error[1] and budget.worst is not None
    assert (error.abs() <= budget.worst).all() and (error.abs() <= 8 * budget.sigma).all() and not budget.sigma[2]


def test_a_fast_exponential_errs_alike_for_values_that_are_alike() -> None:
    x = 1 + 1e-3 * random(500)
    budget = budget_of(lambda x: fast_exp(x * 1.1), x, preset="fp16", output_dtypes=["float32"])
    assert 1e-5 < float((budget.sigma / budget.value).median()) < 2.0**-13
    rows = budget.errors / budget.value
    assert float(rows.std(1).median()) < 0.05 * float(rows.std(0).median())


def test_flash_is_the_definition_in_exact_arithmetic() -> None:
    for causal in (False, True):
        inputs = normal((40, 600, 4), torch.float32, heads=1)
        plain, flash = (budgets_of(inputs, algorithm=a, causal=causal) for a in ("definition", "flash"))
        for one, two in zip(plain, flash, strict=True):
            assert torch.allclose(one.value, two.value, rtol=1e-11, atol=1e-13)


# ---- the float64 reading itself ----


@pytest.mark.parametrize("derivative", list(Derivative))
def test_float64_is_within_its_own_budget(derivative: Derivative) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT * 0.3, -1) @ v

    primals = [random(1, n, 4, seed=n) for n in (5, 7, 8)]
    primals[2] = random(1, 7, 4, seed=9)
    args = [*primals, *([random(*p.shape, seed=3) for p in primals] if derivative.takes_tangents else [])]
    args += [random(1, 5, 4, seed=4)] if derivative.takes_cotangents else []
    graph = trace(program(attention, derivative, 3), *args)
    found = budgets(graph, args, PRESETS["float64"], worst=True)
    truth = (multiprecision if certified.unavailable() else certified).read(graph, args)
    for budget, true in zip(found, truth, strict=True):
        error = true.error(budget.value).abs()
        assert (error <= 8 * budget.sigma).all() and budget.worst is not None and (error <= budget.worst).all()
        assert 0.05 < float((error / budget.sigma).square().mean().sqrt()) < 2
        assert float((budget.sigma / budget.value.abs()).median()) < 1e-14


def test_magnified_probes_are_linear() -> None:
    """Float64 is probed with larger units and scaled back; float32 read so gives what float32 read as it is gives."""
    inputs = normal((20, 30, 8), torch.float32)
    as64 = budgets_of([x.double() for x in inputs])
    as32 = budgets_of(inputs)
    for wide, narrow in zip(as32, as64, strict=True):
        ratio = (wide.errors.square().mean() / narrow.errors.square().mean()).sqrt() * 2.0**-29
        assert float(ratio) == pytest.approx(1, rel=0.3)


# ---- size ----


def test_a_long_problem_takes_few_probes_and_the_same_budget() -> None:
    inputs = normal((20_003, 33, 4), torch.float32, heads=1)
    found = budgets_of(inputs)
    assert found[0].errors.shape[0] == 1 + 8
    for got, budget in zip(fused(*inputs), found, strict=True):
        assert in_sigma(got, budget) <= 8
