"""Shrinking: it starts from the failing case, ends in a small one, and keeps to its boxes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from case_families import FLASH, LOOKUP, NARROW, PLAIN, attention, lookup

from gradoracle.cases.shrinking import shrink
from gradoracle.model import hashing
from gradoracle.model.case import Case, Draw, parse

RICH = parse(
    "case:1 attention cpu bfloat16 B=3 H=2 T=193 D=63 M=300 Dv=23 --scale=0.25 --causal=true q~normal:3/sliced k~wide "
    "v~outlier:300/permuted do~normal/expanded tq~wide/permuted tk~wide/permuted blocks=small seed=3471"
)[2]
SMALLEST = Case("attention", dict.fromkeys(attention.dims, 1))


def shrunk(violates: Callable[[Case], bool], case: Case = RICH, **limits: Any) -> tuple[Case, str, list[Case]]:
    calls: list[Case] = []

    def judged(candidate: Case) -> bool:
        calls.append(candidate)
        return violates(candidate)

    smallest, note = shrink(attention, FLASH, case, judged, **{"seconds": 60, **limits})
    assert violates(smallest) and len(calls) == len(set(calls)) and case not in calls
    return smallest, note, calls


def test_shrinking_ends_in_the_smallest_case() -> None:
    smallest, note, calls = shrunk(
        lambda c: c.dims["T"] > 37 and c.dtype == "bfloat16" and c.draw("do").layout == "expanded"
    )
    assert smallest == replace(SMALLEST.with_dims(T=38).with_draws(do=Draw("normal", "expanded")), dtype="bfloat16")
    assert note == "" and len(calls) < 60


@pytest.mark.parametrize(
    ("violates", "expected"),
    [
        (lambda c: True, SMALLEST),
        (lambda c: c.dims["T"] < c.dims["M"], SMALLEST.with_dims(M=2)),
        (lambda c: c.dims["B"] > 1 and c.dims["Dv"] > 1, SMALLEST.with_dims(B=2, Dv=2)),
        (lambda c: c.dims["M"] > 64 and "causal" in c.options, SMALLEST.with_dims(M=65).with_options(causal=True)),
        (lambda c: c.draw("v").recipe.startswith("outlier"), SMALLEST.with_draws(v=Draw("outlier"))),
        (lambda c: c.draw("v").layout == "permuted", SMALLEST.with_draws(v=Draw("normal", "permuted"))),
        (lambda c: c.draw("v").recipe == "outlier:300", SMALLEST.with_draws(v=Draw("outlier:300"))),
        (lambda c: c.draw("tk") != Draw(), SMALLEST.with_draws(tk=Draw("normal", "permuted"))),
        (lambda c: c.seed == 3471 and c.blocks == "small", replace(SMALLEST, seed=3471, blocks="small")),
        (lambda c: c.dims["T"] == 193, SMALLEST.with_dims(T=193)),
    ],
)
def test_what_does_not_matter_is_shrunk_away(violates: Callable[[Case], bool], expected: Case) -> None:
    smallest, note, calls = shrunk(violates)
    assert smallest == expected and note == "" and len(calls) < 60


def test_a_decent_case_comes_after_few_calls() -> None:
    smallest, note, calls = shrunk(lambda c: c.dims["M"] > 64 and c.dtype == "bfloat16", calls=14, dtypes=("bfloat16",))
    assert "14 cases" in note and len(calls) == 14
    assert not smallest.draws and not smallest.options and smallest.dims["B"] == smallest.dims["T"] == 1


def test_shrinking_never_makes_a_case_worse() -> None:
    """Also where cases violate at random: every part of the result is the start's or plainer."""
    for salt in range(6):
        smallest, _, _ = shrunk(lambda c, salt=salt: c == RICH or hashing.key(salt, str(c)) % 3 == 0)
        assert all(size <= RICH.dims[dim] for dim, size in smallest.dims.items())
        assert smallest.options.items() <= RICH.options.items() and set(smallest.draws) <= set(RICH.draws)
        assert smallest.seed in (0, RICH.seed) and smallest.dtype in ("float32", "bfloat16")


def test_shrinking_is_boxed_in_time() -> None:
    def slow(case: Case) -> bool:
        time.sleep(0.02)
        return case.dims["T"] > 37

    started = time.monotonic()
    smallest, note, calls = shrunk(slow, seconds=0.15)
    assert time.monotonic() - started < 5 and "time for shrinking" in note
    assert 1 <= len(calls) <= 8 and smallest != RICH
    unshrunk, note, calls = shrunk(slow, seconds=0)
    assert (unshrunk, calls) == (RICH, []) and "time for shrinking" in note


def test_a_case_that_is_already_smallest_needs_no_call() -> None:
    assert shrunk(lambda c: True, SMALLEST) == (SMALLEST, "", [])


def test_what_else_is_raised_goes_through() -> None:
    def interrupted(case: Case) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shrink(attention, FLASH, RICH, interrupted, seconds=5)


def test_shrinking_keeps_to_what_kernel_and_user_allow() -> None:
    case = Case("attention", {"B": 2, "H": 2, "T": 64, "D": 128, "M": 256, "Dv": 64}, "bfloat16", {"causal": True})
    smallest, _ = shrink(attention, NARROW, case, lambda c: c.dims["M"] > 100, seconds=10)
    assert smallest == Case("attention", {"B": 1, "H": 1, "T": 16, "D": 64, "M": 112, "Dv": 64}, "bfloat16",
                            {"causal": True})  # fmt: skip
    odd = case.with_dims(T=63)  # a replayed case may lie outside the domain
    assert shrink(attention, NARROW, odd, lambda c: c.dims["T"] == 63, seconds=10)[0].dims["T"] == 63
    large = SMALLEST.with_dims(T=100_003, M=33)
    assert shrink(attention, PLAIN, large, lambda c: c.dims["T"] > 65_536, seconds=10)[0].dims["T"] == 65_537


def test_optional_and_integer_inputs_shrink_to_absent_and_default() -> None:
    dims = {"V": 9, "D": 5, "T": 31, "S": 4}
    case = Case("lookup", dims, draws={"bias": Draw("ties", "strided"), "rows": Draw("collisions", "offset")}, seed=5)
    least = Case("lookup", dict.fromkeys(dims, 1))
    assert shrink(lookup, LOOKUP, case, lambda c: True, seconds=10)[0] == least
    given_bias, _ = shrink(lookup, LOOKUP, case, lambda c: "bias" in c.draws, seconds=10)
    assert given_bias == least.with_draws(bias=Draw())
    colliding, _ = shrink(
        lookup, LOOKUP, case, lambda c: c.draws.get("rows", Draw()).recipe == "collisions", seconds=10
    )
    assert colliding == least.with_draws(rows=Draw("collisions"))
