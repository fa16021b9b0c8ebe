"""The readings of their own that semicrf and lightning have, against a scan's of the same mathematics."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace

import pytest
import torch
from gradoracle.properties.lightning import FAMILY as lightning
from gradoracle.properties.semicrf import FAMILY as semicrf
from gradoracle.properties.semicrf.readings.scalable import SemiCRF
from sweeps import covering, slow
from torch import Tensor

from gradoracle.cases.sample import Sample, build
from gradoracle.model.case import parse
from gradoracle.model.contract import default_contract
from gradoracle.model.derivative import Derivative
from gradoracle.model.family import Family
from gradoracle.oracle.exact.recurrence import recurrences
from gradoracle.oracle.rounding.reading import Budget
from gradoracle.oracle.truth import Oracle, Truth
from tests.properties.lightning import chunked_attention
from tests.properties.lightning import stepwise as lightning_stepwise
from tests.properties.semicrf import single
from tests.properties.semicrf import stepwise as semicrf_stepwise
from tests.properties.semicrf.samples import random_walk
from tests.properties.semicrf.samples import sample as semicrf_sample

CONTRACT = default_contract("float32")
AGREE = 1e-13  # of the largest element of a tensor
DERIVATIVES = [Derivative.VJP, Derivative.JVP, Derivative.HVP]
ALLOWED = ["transition", "by duration", "projections", "all by duration", "full lengths"]  # where -inf forbids nothing


def lightning_sample(words: str, sizes: str = "B=2 H=2 N=40 D=3 Dv=5", dtype: str = "float32") -> Sample:
    _, _, case = parse(f"case:1 lightning cpu {dtype} {sizes} {words} seed=1")
    return build(case, lightning.signature, domains=lightning.domains)


def faulty(family: Family, definition: object, fault: str) -> Oracle:
    wrong = functools.wraps(definition)(functools.partial(definition, fault=fault))  # type: ignore[arg-type]
    return Oracle(replace(family, definition=wrong, scalable=None, algorithms={}))


def own_values(own: Sample, derivative: Derivative) -> dict[str, Tensor]:
    """Truths of semicrf by its own recursion, which ``Oracle`` takes from some size on."""
    return SemiCRF().values(own, derivative)


def scanned(oracle: Oracle, own: Sample, derivative: Derivative) -> tuple[dict[str, Budget], dict[str, Truth]]:
    budgets = oracle.budgets(own, derivative, CONTRACT)
    return budgets, oracle.truth(own, derivative, budgets, CONTRACT)


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, of the largest element."""
    return float((one - other).abs().max() / one.abs().max())


def median_ratio(one: Budget, other: Budget) -> float:
    some = one.sigma > 0
    return float((other.sigma[some] / one.sigma[some]).median())


@pytest.mark.parametrize(("words", "derivative"), covering(itertools.product(ALLOWED, DERIVATIVES), 1))
def test_truths_of_the_semicrf_agree(words: str, derivative: Derivative) -> None:
    own = semicrf_sample(words, "B=2 T=16 C=2 K=3")
    expected, (_, found) = own_values(own, derivative), scanned(semicrf_stepwise.ORACLE, own, derivative)
    assert set(expected) == set(found)
    for name, value in expected.items():
        assert apart(value, found[name].value) < AGREE, name


@pytest.mark.parametrize(
    ("rows", "words", "derivative"),  # the definition sums the longer one by pieces
    covering(itertools.product((40, 600), ("", "initial_state~normal --return_state=true"), DERIVATIVES), 1),
)
def test_truths_of_lightning_agree(rows: int, words: str, derivative: Derivative) -> None:
    own = lightning_sample(words, f"B=1 H=2 N={rows} D=3 Dv=5")
    (_, expected), (_, found) = (scanned(o, own, derivative) for o in (Oracle(lightning), lightning_stepwise.ORACLE))
    assert set(expected) == set(found)
    for name, truth in expected.items():
        assert apart(truth.value, found[name].value) < AGREE, name


def test_a_scan_with_a_term_missing_does_not_agree() -> None:
    own = semicrf_sample("full lengths", "B=2 T=16 C=2 K=3")
    expected = own_values(own, Derivative.VJP)
    wrong = faulty(semicrf, semicrf_stepwise.stepwise, "without durations")
    found = scanned(wrong, own, Derivative.VJP)[1]
    assert all(apart(value, found[name].value) > 1e-3 for name, value in expected.items() if name != "dduration_bias")
    other = lightning_sample("")
    truth = scanned(Oracle(lightning), other, Derivative.VJP)[1]
    found = scanned(faulty(lightning, lightning_stepwise.stepwise, "state before"), other, Derivative.VJP)[1]
    assert all(apart(each.value, found[name].value) > 1e-3 for name, each in truth.items())


@pytest.mark.parametrize("derivative", [Derivative.VJP, Derivative.HVP])
def test_sigma_of_lightning_is_that_of_an_algorithm_that_takes_one_row_at_a_time(derivative: Derivative) -> None:
    """Both add one product to the state in each row. The algorithm knows no order of two parts and adds the worse one,
    and counts a row's own score apart: up to three roundings of one size where the scan has one."""
    own = lightning_sample("initial_state~normal --return_state=true")
    algorithm = Oracle(lightning).budgets(own, derivative, CONTRACT, algorithm="chunks of 1")
    for name, budget in lightning_stepwise.ORACLE.budgets(own, derivative, CONTRACT).items():
        assert 1 / 3 < median_ratio(algorithm[name], budget) < 1, name


@pytest.mark.parametrize("derivative", [Derivative.VJP, Derivative.HVP])
def test_sigma_of_short_semicrfs_is_of_the_same_size(derivative: Derivative) -> None:
    """Each of the n operators of a scan's steps rounds once, where the recursion counts one rounding at least: a factor
    of sqrt(n). Alpha and beta drift apart in proportion to T, roundings of a scan to its root: a factor of sqrt(T)."""
    own = semicrf_sample("full lengths", "B=2 T=16 C=2 K=3")
    known = SemiCRF().budgets(own, derivative, CONTRACT, stored={}, probes=16, worst=False)
    graph = semicrf_stepwise.ORACLE.graph(own, derivative)
    operators = sum(len(each.body.nodes) for each in recurrences(graph))
    for name, budget in semicrf_stepwise.ORACLE.budgets(own, derivative, CONTRACT).items():
        assert 1 / math.sqrt(16) < median_ratio(known[name], budget) < math.sqrt(operators), name


def test_sigma_of_log_z_is_that_of_norms_in_float32() -> None:
    """The recursion adds up norms exactly; a scan rounds the sum of t of them by u |sum| / sqrt(3) in each step."""
    inputs = random_walk({"B": 1, "T": 200, "C": 2, "K": 3}, drift=5.0)
    own = semicrf_sample("full lengths", "B=1 T=200 C=2 K=3").with_inputs(**inputs)
    known = SemiCRF().budgets(own, Derivative.FORWARD, CONTRACT, stored={}, probes=16, worst=False)["log_z"]
    found = semicrf_stepwise.ORACLE.budgets(own, Derivative.FORWARD, CONTRACT)["log_z"]
    totals = 5.0 * torch.arange(1, 201, dtype=torch.float64)
    added = 2.0**-24 / math.sqrt(3) * float(totals.square().sum().sqrt())
    assert float(known.sigma) < added / 5
    assert 2 / 3 < float(found.sigma) / math.hypot(float(known.sigma), added) < 3 / 2


def worst(found: dict[str, Tensor], budgets: dict[str, Budget], truths: dict[str, Tensor]) -> float:
    """The largest error of all tensors, in sigma."""
    return max(float(((found[n].double() - truths[n]).abs() / b.sigma).nan_to_num().max()) for n, b in budgets.items())


def test_a_correct_kernel_of_chunks_is_within_the_algorithm_alone() -> None:
    """In bfloat16 it rounds scores and states that are operands; the scan has neither."""
    own, contract = lightning_sample("", "B=1 H=2 N=100 D=8 Dv=8", "bfloat16"), default_contract("bfloat16")
    inputs = [own.inputs[name] for name in ("q", "k", "v")]
    found = chunked_attention.right(chunked_attention.chunked_scan, *inputs, None, own.cotangents["o"], None)
    algorithm = Oracle(lightning).budgets(own, Derivative.VJP, contract, algorithm="chunks of 64")
    values = {name: budget.value for name, budget in algorithm.items()}
    assert worst(found, algorithm, values) < 5
    assert worst(found, lightning_stepwise.ORACLE.budgets(own, Derivative.VJP, contract), values) > 100


@pytest.mark.parametrize("steps", [slow(4000)])
def test_a_correct_kernel_of_alpha_and_beta_is_within_the_own_reading_alone(steps: int) -> None:
    """Alpha and beta err apart, in proportion to the length; a scan's backward reads the alphas that forward made."""
    own = semicrf_sample("full lengths", f"B=1 T={steps} C=3 K=3")
    found = single.run(own.inputs, own.cotangents["log_z"])
    known = SemiCRF().budgets(own, Derivative.VJP, CONTRACT, stored={}, probes=16, worst=False)
    values = {name: budget.value for name, budget in known.items()}
    assert worst(found, known, values) < 5
    assert worst(found, semicrf_stepwise.ORACLE.budgets(own, Derivative.VJP, CONTRACT), values) > 8
