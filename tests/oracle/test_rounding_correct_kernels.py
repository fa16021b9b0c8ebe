"""Correct kernels that broke simpler budgets: none may be further out than eight sigma, nor than the worst case."""

from __future__ import annotations

import itertools
from functools import partial

import correct_kernels as ck
import pytest
import torch
from correct_kernels import NAMES, RECIPES, REPEATING, budgets_of, fused, in_sigma, normal, of_worst, slope
from sweeps import covering

from gradoracle.model.contract import default_contract
from gradoracle.model.formats import FORMATS
from gradoracle.oracle.exact.trace import trace
from gradoracle.oracle.rounding.reading import budgets

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(33, 65, 32), (1, 200, 8), (100, 40, 128), (1, 1, 1), (7, 1, 64), (64, 64, 1)]

# the budget's algorithm and whether its contract is that of eager execution -> kernels
KERNELS = {
    ("definition", False): {
        "torch math": ck.torch_math,
        "z from P, exp2": fused,
        "exp, blocks of 16": partial(fused, block=16, base_two=False),
        "split sums": partial(fused, split=32),
    },
    ("flash", False): {
        "torch flash": ck.torch_flash,
        "z from O, log-sum-exp": partial(fused, z_from="O", log_sum_exp=True),
    },
    ("definition", True): {"eager": ck.eager},
}
EAGER = {torch.float32: "ieee32", torch.bfloat16: "eager-bf16", torch.float16: "eager-fp16"}


@pytest.mark.parametrize(
    ("algorithm", "dtype", "recipe", "seed"),
    covering(itertools.product(KERNELS, DTYPES, [*RECIPES, *REPEATING], range(len(SHAPES)))),
)
def test_correct_kernels_stay_within_their_budgets(
    algorithm: tuple[str, bool], dtype: torch.dtype, recipe: str, seed: int
) -> None:
    repeats, shape = recipe in REPEATING, SHAPES[seed]
    change = REPEATING[recipe] if repeats else RECIPES[recipe]
    inputs = [change(x.double()).to(dtype) for x in normal(shape, dtype, seed, heads=1)]
    own, in_eager = algorithm
    preset = EAGER[dtype] if in_eager else None
    found = budgets_of(inputs, preset=preset, algorithm=own, worst=True, probes=4 if repeats else 16)
    for name, kernel in KERNELS[algorithm].items():
        for tensor, got, budget in zip(NAMES, kernel(*inputs), found, strict=True):
            lost = ~got.isfinite() & (budget.value.abs() <= FORMATS[str(dtype)[6:]].largest)
            assert not lost.any() or (budget.overflow is not None and budget.overflow[lost].all()), (name, tensor)
            got = torch.where(got.isfinite(), got.double(), budget.value)
            assert of_worst(got, budget) <= 1, (name, tensor, shape)
            assert repeats or in_sigma(got, budget) <= 8, (name, tensor, shape)


@pytest.mark.parametrize(
    ("tf32", "recipe", "seed"),
    covering(itertools.product([ck.cut_to_tf32, ck.rounded_to_tf32], RECIPES, range(len(SHAPES)))),
)
def test_tf32_cut_or_rounded(tf32: object, recipe: str, seed: int) -> None:
    inputs = [RECIPES[recipe](x.double()).float() for x in normal(SHAPES[seed], torch.float32, seed)]
    found = budgets_of(inputs, preset="tf32", worst=True)
    for tensor, got, budget in zip(NAMES, fused(*inputs, tf32=tf32), found, strict=True):
        assert in_sigma(got, budget) <= 8, tensor
        assert of_worst(got, budget) <= 1, tensor


def test_the_bias_of_cut_operands_is_a_bias_of_the_probes() -> None:
    inputs = normal((96, 96, 64), torch.float32)
    for got, budget in zip(fused(*inputs, tf32=ck.cut_to_tf32), budgets_of(inputs, preset="tf32"), strict=True):
        found, limit = slope(got, budget)
        assert 1e-4 < abs(found) < limit


def test_an_ieee_contract_sees_tf32() -> None:
    inputs = normal((33, 65, 32), torch.float32)
    for got, budget in zip(fused(*inputs, tf32=ck.rounded_to_tf32), budgets_of(inputs), strict=True):
        assert in_sigma(got, budget) > 100


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("recipe", ["normal", "positive"])
def test_four_thousand_keys(dtype: torch.dtype, recipe: str) -> None:
    inputs = [RECIPES[recipe](x.double()).to(dtype) for x in normal((5, 4096, 16), dtype, heads=1)]
    for kernel, algorithm in ((fused, "definition"), (ck.torch_math, "definition"), (ck.torch_flash, "flash")):
        for got, budget in zip(kernel(*inputs), budgets_of(inputs, algorithm=algorithm), strict=True):
            assert in_sigma(got, budget) <= 8
            if algorithm == "definition":  # z from a rounded O gives dq of positive inputs away
                assert float((budget.sigma / budget.value.abs()).median()) < 0.1


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("shape", [(33, 65, 32), (20, 50, 8), (50, 20, 8), (1, 1, 4)])
def test_causal_with_queries_that_see_nothing(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    inputs = normal(shape, dtype)
    found = budgets_of(inputs, causal=True, worst=True)
    for got, budget in zip(fused(*inputs, causal=True), found, strict=True):
        assert in_sigma(got, budget) <= 8
        assert of_worst(got, budget) <= 1
    blind = ~ck.visible_to(inputs[0], inputs[1]).any(-1)
    for budget in found[:2]:
        for part in (budget.value, budget.sigma, budget.worst, budget.floor, budget.errors.abs().amax(0)):
            assert part is not None and not part[..., blind, :].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_correct_kernels_show_no_bias(dtype: torch.dtype) -> None:
    inputs = normal((128, 128, 64), dtype)
    for kernel, algorithm in ((fused, "definition"), (ck.torch_math, "definition"), (ck.torch_flash, "flash")):
        for got, budget in zip(kernel(*inputs), budgets_of(inputs, algorithm=algorithm), strict=True):
            found, limit = slope(got, budget)
            assert abs(found) < limit


@pytest.mark.parametrize(("queries", "keys", "scale"), [(64, 1000, 6.0), (16, 4000, 6.0), (4, 16_000, 4.0)])
def test_terms_too_small_for_a_running_sum_are_a_bias_of_the_probes(queries: int, keys: int, scale: float) -> None:
    q, k, v, do = normal((queries, keys, 16), torch.float32, heads=3)
    inputs = [q * scale, k, v.abs(), do]
    o = budgets_of(inputs, worst=True)[0]
    got = ck.one_key_after_another(*inputs[:3])
    found, limit = slope(got, o)
    assert found < -5e-7, "no term was dropped"
    assert abs(found) < limit
    assert in_sigma(got, o) <= 8
    assert of_worst(got, o) <= 1
    found, limit = slope(o.value * (1 - 1e-4), o)
    assert abs(found) > limit, "a factor passes as dropped terms"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_plain_sum_in_order_drops_small_terms_under_each_contract(dtype: str) -> None:
    x = torch.full((64, 2**16), 2.0**-26).double()
    x[:, 0] = 1.0
    found = budgets(trace(lambda x: (x.sum(-1),), x), [x], default_contract(dtype), probes=16, worst=True)[0]
    got = torch.ones(64).double()  # float32 adds each small term to 1 and rounds to 1
    lost, limit = slope(got, found)
    assert lost < -9e-4 and abs(lost) < limit
    assert in_sigma(got, found) <= 2 and of_worst(got, found) <= 1  # all 64 err alike
    lost, limit = slope(found.value * 0.97, found)
    assert abs(lost) > limit


def test_dropped_terms_do_not_lower_the_worst_case_of_a_sum_that_is_cut() -> None:
    threshold = 64 * 2.0**-24  # below it a term of a sum of 64 may be dropped
    worst = []
    for small in (0.99 * threshold, 1.01 * threshold):
        x = torch.cat([torch.ones(1, 64), torch.full((1, 64), small)], -1).double()
        found = budgets(trace(lambda x: (x.sum(-1),), x), [x], default_contract("bfloat16"), worst=True)[0].worst
        assert found is not None
        worst.append(float(found))
    assert worst[0] > worst[1] - 1e-4  # a bound from which they are subtracted is lower by 5e-4


def test_a_small_operand_of_a_large_one_is_not_dropped() -> None:
    inputs = [torch.tensor([[1.0, 1e-9]]).double(), torch.tensor([[1e-9], [1.0]]).double()]
    found = budgets(trace(torch.matmul, *inputs), inputs, default_contract("float32"), probes=16)[0]
    assert float(found.sigma / found.value) < 1e-6


def test_flash_needs_its_own_algorithm_at_large_logits() -> None:
    inputs = [x * 3 for x in normal((64, 64, 64), torch.bfloat16)]
    dq = fused(*inputs, z_from="O")[1]
    assert in_sigma(dq, budgets_of(inputs)[1]) > 8 > in_sigma(dq, budgets_of(inputs, algorithm="flash")[1])


def test_eager_in_16_bit_needs_its_own_contract() -> None:
    inputs = [x.abs() for x in normal((33, 65, 32), torch.bfloat16)]
    dq = ck.eager(*inputs)[1]
    assert in_sigma(dq, budgets_of(inputs)[1]) > 8 > in_sigma(dq, budgets_of(inputs, preset="eager-bf16")[1])
