"""What a run measured: each tensor in its bin, the largest error of each size, and two halves that add up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gradoracle.check.run import check
from gradoracle.model.case import Case
from gradoracle.model.finding import Finding, Outcome, Pool
from gradoracle.model.statistics import BINS, MOST_CURVES, Measurements, bin_of, edge
from gradoracle.project.request import Request


def case(size: int, dtype: str = "float32") -> Case:
    return Case("toy", {"T": size}, dtype)


def found(rms: float, worst: float, count: int = 4) -> Finding:
    pool = Pool(count, count * rms**2, (1.0,), 0.0, 0.0, ())
    return Finding("o", Outcome.HOLDS, "local", error_in_sigma=worst, elements=count, pool=pool)


@pytest.mark.parametrize("rms", [0.0, 1e-9, 2.0**-10, 0.001, 0.7, 1.0, 1.0001, 7.9, 8.0, 8.1, 1e9, math.inf])
def test_each_spread_is_in_the_bin_that_ends_next_above_it(rms: float) -> None:
    bin = bin_of(rms)
    assert rms <= edge(bin) and (bin == 0 or rms > edge(bin - 1))


def test_only_what_is_compared_with_the_truth_is_counted() -> None:
    seen = Measurements("T")
    seen.add("k", case(5), [found(1.0, 2.0)], direct=False)
    assert not seen.spread and not seen.growth
    seen.add("k", case(5), [found(1.0, 2.0), found(0.5, 3.0)], direct=True)
    seen.add("k", case(5, "bfloat16"), [found(9.0, 30.0)], direct=True)
    assert {dtype: sum(counts) for dtype, counts in seen.spread.items()} == {"float32": 2, "bfloat16": 1}
    assert seen.spread["bfloat16"][BINS - 1] == 1
    assert [(g.dtype, g.size, g.in_sigma, g.tensors) for g in seen.growth] == [
        ("bfloat16", 5, 30.0, 1),
        ("float32", 5, 3.0, 2),
    ]


def test_two_halves_of_a_run_one_after_the_other_are_the_whole() -> None:
    findings = [(size, found(0.1 * size, float(size))) for size in range(1, 30)]
    whole, halves = Measurements("T"), Measurements("T")
    for size, each in findings:
        whole.add("k", case(size % 7 + 1), [each], direct=True)
    for size, each in findings[::2] + findings[1::2]:
        halves.add("k", case(size % 7 + 1), [each], direct=True)
    assert halves.spread == whole.spread
    assert halves.growth == whole.growth
    assert sum(whole.spread["float32"]) == 29


def test_curves_are_kept_up_to_a_number_a_kernel() -> None:
    seen = Measurements("T")
    curve = Finding("order of dq", Outcome.HOLDS, "exact", steps=((1e-3, 1e-6), (2e-3, 4e-6)))
    for _ in range(MOST_CURVES + 3):
        seen.add("k", case(1), [curve], direct=False)
    assert len(seen.convergence) == MOST_CURVES and seen.differences == MOST_CURVES + 3
    seen.add("other", case(1), [curve], direct=False)
    assert seen.convergence[-1].kernel == "other" and seen.convergence[-1].steps == curve.steps


def test_the_same_curves_are_kept_in_whatever_order_they_come() -> None:
    curves = [Finding("d", Outcome.HOLDS, "exact", steps=((2.0**-n, 1e-6), (2.0**-n * 2, 4e-6))) for n in range(90)]
    one, two = Measurements("T"), Measurements("T")
    one.add("k", case(1), curves, direct=False)
    two.add("k", case(1), curves[::-2], direct=False)
    two.add("k", case(1), curves[::2], direct=False)
    assert one.convergence == two.convergence and len(one.convergence) == MOST_CURVES


def test_a_run_reports_what_it_measured() -> None:
    report = check(Request("sdpa", device="cpu", examples=12, workers=0, property="*_matches_the_oracle"))
    measured = report.measurements
    assert measured is not None and measured.dim == "T"
    compared = sum(each.tensors_compared for each in report.verdicts)
    assert 0 < sum(map(sum, measured.spread.values())) <= compared
    worst = max(each.worst_in_sigma for each in report.verdicts)
    assert 0 < max(each.in_sigma for each in measured.growth) <= worst


def test_growth_is_of_tensors_that_the_local_rule_judges_and_large_sizes_share_a_place() -> None:
    seen = Measurements("T")
    seen.add("k", case(5), [replace(found(1.0, 30.0), rule="worst case")], direct=True)
    assert not seen.growth
    for size in (64, 65, 100_001, 100_003):
        seen.add("k", case(size), [found(1.0, 2.0)], direct=True)
    (near, next_, far) = seen.growth
    assert (near.size, next_.size) == (64, 65) and far.tensors == 2 and abs(far.size / 100_000 - 1) < 0.025
    for size in range(1, 200_000, 7):
        seen.add("k", case(size), [found(1.0, 2.0)], direct=True)
    assert len(seen.growth) < 512 + 16 * 10
