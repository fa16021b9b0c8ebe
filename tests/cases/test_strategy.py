"""Strategies: one fixed stream, every goal reached and counted, shrinking that ends in a small case."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from case_families import CHAIN, FLASH, LOOKUP, NARROW, PLAIN, attention, chain, lookup
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from places import TESTS

from gradoracle.cases.case_space import case_space
from gradoracle.cases.coverage import FULL_RUN, goals_of, wanted_goals
from gradoracle.cases.hypothesis_strategy import strategy
from gradoracle.cases.sample import build
from gradoracle.cases.shrinking import Provider, drawing
from gradoracle.cases.strategy import plainest
from gradoracle.cases.stream import Hashed, _covering, stream
from gradoracle.model import layouts, recipes
from gradoracle.model.case import Case, Draw, parse
from gradoracle.model.dims import Sizes, choices, sizes
from gradoracle.model.kernel import Kernel

SUBJECTS = [(attention, FLASH), (attention, PLAIN), (attention, NARROW), (lookup, LOOKUP)]
IDS = [kernel.name for _, kernel in SUBJECTS]


def digest(run: list[Case]) -> str:
    return hashlib.sha256("\n".join(case.line() for case in run).encode()).hexdigest()[:16]


def counted(subject: Any, kernel: Kernel, run: list[Case]) -> Counter[str]:
    return Counter(name for case in run for name in goals_of(subject, kernel, case))


def short_of(subject: Any, kernel: Kernel, run: list[Case], examples: int) -> set[str]:
    counts = counted(subject, kernel, run)
    expected = wanted_goals(subject, kernel, kernel.dtypes or subject.dtypes, examples)
    return {name for name, count in expected.items() if counts[name] < count}


@pytest.mark.parametrize(("subject", "kernel"), SUBJECTS, ids=IDS)
@pytest.mark.parametrize("examples", [1, 2, 7, 126, 300])
def test_a_stream_has_exactly_so_many_distinct_cases(subject: Any, kernel: Kernel, examples: int) -> None:
    run = stream(subject, kernel, examples=examples, seed=1)
    assert len(run) == len(set(run)) == len({case.line() for case in run}) == examples
    counts = Counter(case.dtype for case in run)
    assert max(counts.values()) - min(counts.values()) <= 1
    dtypes = kernel.dtypes or subject.dtypes
    assert [case.dtype for case in run[: len(dtypes)]] == list(dtypes)[:examples]


@pytest.mark.parametrize(("subject", "kernel"), SUBJECTS, ids=IDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_coverage_goal_is_reached(subject: Any, kernel: Kernel, seed: int) -> None:
    for examples in (FULL_RUN, 260):
        assert not short_of(subject, kernel, stream(subject, kernel, examples=examples, seed=seed), examples)


def test_the_coverage_goals_are_those_of_the_design() -> None:
    expected = wanted_goals(attention, FLASH, attention.dtypes, 126)
    named = "T < M, T > M, D < Dv, D > Dv, T > 100 000, T has 3 tiles, causal = True, scale = 0.25, scale = None"
    assert set(named.split(", ")) <= set(expected)
    assert {"joint logits 1e4", "blocks auto", "blocks small", "dtype float16"} <= set(expected)
    for dim in attention.dims:
        assert {f"{dim} = 1", f"{dim} has a tail"} <= set(expected)
    assert {f"recipe {name}" for name in (*recipes.RECIPES, "normal:p")} <= set(expected)
    assert {f"{role} {name}" for role in ("input", "cotangent") for name in layouts.LAYOUTS} <= set(expected)
    assert "M > 100 000" not in expected and "B has 3 tiles" not in expected
    others = wanted_goals(lookup, LOOKUP, lookup.dtypes, 126)
    assert {"bias given", "bias absent", "recipe collisions", "recipe index", "T > 100 000"} <= set(others)


def test_each_block_configuration_has_several_batch_members_and_tiles() -> None:
    goals = [f"blocks {name}, several batch members and tiles" for name in ("small", "big")]
    tiled = replace(FLASH, tiles=lambda dtype, dims, blocks, order, arguments: {"T": FLASH.blocks[blocks], "M": 16})
    assert not set(goals) & set(wanted_goals(attention, FLASH, attention.dtypes, 126))  # its tiles are not known
    assert set(goals) <= set(wanted_goals(attention, tiled, attention.dtypes, 126))
    run = stream(attention, tiled, examples=126, seed=0)
    assert not short_of(attention, tiled, run, 126)
    for goal, rows in zip(goals, (33, 129), strict=True):
        met = [case for case in run if goal in goals_of(attention, tiled, case)]
        assert all(case.dims["B"] > 1 and case.dims["T"] >= rows and case.dims["M"] >= 33 for case in met)
    assert not set(goals) & set(wanted_goals(attention, tiled, attention.dtypes, 126, {"B": sizes(1, 1)}))
    long = replace(FLASH, tiles=lambda dtype, dims, blocks, order, arguments: {"T": 64 * FLASH.blocks[blocks]})
    assert not set(goals) & set(wanted_goals(attention, long, attention.dtypes, 126))


def test_what_a_kernel_cannot_have_is_no_coverage_goal() -> None:
    expected = set(wanted_goals(attention, NARROW, ("bfloat16",), 126))
    assert not expected & {
        "T has a tail",
        "T = 1",
        "D = 1",
        "scale = None",
        "causal = False",
        "dtype float32",
        "D < Dv",
    }
    assert {"B has a tail", "T < M", "D > Dv", "causal = True", "T has 3 tiles"} <= expected
    fixed = wanted_goals(attention, PLAIN, ("float32",), 126, {"T": sizes(1, 16), "M": choices(64)})
    assert not set(fixed) & {"T > M", "T > 100 000", "T has 3 tiles", "M has a tail"} and "T < M" in fixed


@pytest.mark.parametrize(
    "misses",
    [
        lambda case: case.draw("do").layout == "expanded",
        lambda case: any(draw.recipe == "subnormal" for draw in case.draws.values()),
        lambda case: case.dims["T"] > 100_000,
        lambda case: case.dims["Dv"] == 1,
        lambda case: case.dims["T"] > 128,
        lambda case: case.dims["D"] < case.dims["Dv"],
        lambda case: case.dims["M"] % 16 != 0,
        lambda case: case.options.get("causal"),
        lambda case: "causal" not in case.options,
        lambda case: case.dtype == "float16",
        lambda case: case.blocks == "big",
        lambda case: case.draw("q").recipe == "normal:100",
    ],
)
def test_a_stream_that_misses_a_goal_is_noticed(misses: Callable[[Case], bool]) -> None:
    run = stream(attention, FLASH, examples=126, seed=0)
    assert not short_of(attention, FLASH, run, 126)
    assert short_of(attention, FLASH, [case for case in run if not misses(case)], 126)


def test_goals_look_at_what_the_tensors_are() -> None:
    dims = {"B": 1, "H": 2, "T": 33, "D": 16, "M": 129, "Dv": 17}
    case = Case("attention", dims, draws={"q": Draw("normal:3", "transposed"), "do": Draw("ties", "expanded")})
    found = goals_of(attention, FLASH, case)
    held = "B = 1, T has a tail, M has 3 tiles, T < M, D < Dv, recipe normal:p, recipe ties, recipe normal, blocks auto"
    places = "input transposed, cotangent expanded, input contiguous, scale = None, causal = False"
    assert {*held.split(", "), *places.split(", ")} <= found
    others = "D has a tail, T has 3 tiles, T > M, cotangent contiguous, input expanded, blocks small"
    assert not set(others.split(", ")) & found
    narrow = replace(case, dims={**dims, "T": 1})  # exchanging a dim of one element changes nothing
    assert "input transposed" not in goals_of(attention, FLASH, narrow)


def test_short_runs_promise_dtypes_only() -> None:
    assert wanted_goals(attention, PLAIN, ("float32", "float16"), 5) == {"dtype float32": 1, "dtype float16": 1}
    assert wanted_goals(attention, PLAIN, ("float32", "float16"), 1) == {}


@pytest.mark.parametrize(("subject", "kernel"), SUBJECTS, ids=IDS)
def test_every_case_is_allowed_and_builds(subject: Any, kernel: Kernel) -> None:
    allowed = case_space(subject, kernel).sizes
    for place, case in enumerate(stream(subject, kernel, examples=126, seed=3)):
        assert parse(case.line()) == (subject.name, "cpu", case)
        for dim, size in case.dims.items():
            assert size in allowed[dim]
        assert "scale" not in case.options or kernel is not NARROW
        if place % 6 == 0 and max(case.dims.values()) < 100_000:
            sample = build(case, subject.signature, domains=subject.domains)
            assert all(tensor.isfinite().all() for tensor in sample.inputs.values())


def test_cases_are_small_but_for_the_large_ones() -> None:
    run = stream(attention, PLAIN, examples=600, seed=0)
    large = [case for case in run if case.dims["T"] > 100_000]
    assert len(large) == 1
    assert all(case.dims["M"] <= 64 and case.dims["D"] <= 8 and case.dims["B"] == case.dims["H"] == 1 for case in large)
    rows = [case.dims["B"] * case.dims["H"] * case.dims["T"] * case.dims["M"] for case in run if case not in large]
    assert max(rows) <= 60_000 and sum(rows) / len(rows) < 12_000 and max(case.dims["T"] for case in run) >= 300
    assert 0.4 < sum(case.continuous for case in run) / len(run) < 0.75
    assert sum(len(case.line()) for case in run) / len(run) < 140


def test_on_a_gpu_a_few_cases_are_larger_still() -> None:
    dims = {**lookup.dims, "T": sizes(1, 200, large=150_000, large_on_gpu=1_048_576)}
    subject = replace(lookup, dims=dims).on("cuda")
    drawn = stream(subject, LOOKUP, examples=FULL_RUN)
    expected = wanted_goals(subject, LOOKUP, subject.dtypes, FULL_RUN)
    assert expected["T > 100 000"] == expected["T > 1 000 000"] == 1
    assert {case.dims["T"] for case in drawn} & {1_048_575, 1_048_576}
    assert "T > 1 000 000" not in wanted_goals(replace(lookup, dims=dims), LOOKUP, lookup.dtypes, FULL_RUN)


def test_what_a_large_size_is_repeated_for_is_there_once() -> None:
    large = [case for case in stream(chain, CHAIN, examples=FULL_RUN) if case.dims["T"] > 100_000]
    assert large and all(case.dims["B"] == 1 for case in large)


def test_sizes_favour_what_breaks_kernels() -> None:
    run = stream(attention, PLAIN, examples=600, seed=0)
    assert {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129} <= {case.dims["T"] for case in run}
    assert sum(case.dims["D"] == case.dims["Dv"] for case in run) > 60
    assert sum(case.dims["T"] == case.dims["M"] for case in run) > 60


def test_a_longer_range_of_the_user_is_used() -> None:
    run = stream(attention, PLAIN, dims={"T": Sizes(1000, 4096), "M": sizes(1, 8)}, examples=60)
    assert all(1000 <= case.dims["T"] <= 4096 and case.dims["M"] <= 8 for case in run)
    assert len({case.dims["T"] for case in run}) > 10
    only = stream(attention, PLAIN, dims={"T": choices(100_003)}, examples=5)
    assert {case.dims["T"] for case in only} == {100_003}


@pytest.mark.parametrize(
    ("kernel", "arguments", "message"),
    [
        (PLAIN, {"dims": {"N": sizes(1, 4)}}, "no dim N; it has B, H, T, D, M, Dv"),
        (NARROW, {"dims": {"D": choices(32)}}, "dim D of narrow: 32 .* 1 to 128"),
        (NARROW, {"dtypes": ("float32",)}, "narrow supports bfloat16; .* float32"),
        (PLAIN, {"examples": 0}, "0 cases .* at least 1"),
    ],
)
def test_impossible_streams_are_refused(kernel: Kernel, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stream(attention, kernel, **{"examples": 5, **arguments})


def test_too_few_distinct_cases_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradoracle.cases.strategy._HUNDRED", (0,))
    monkeypatch.setattr("gradoracle.cases.strategy._MODES", ("plain",))
    monkeypatch.setattr("gradoracle.cases.strategy._LAYOUT_MODES", ("contiguous",))
    monkeypatch.setattr("gradoracle.cases.strategy._tangents", lambda *arguments: {})
    tiny = dict.fromkeys(attention.dims, choices(1))
    with pytest.raises(ValueError, match="400 distinct cases of plain"):
        stream(attention, PLAIN, dims=tiny, dtypes=("float32",), examples=400)


GOLDEN = {"attention": "8fcff62ba72331b0", "lookup": "2dc089b934533616"}


def test_the_stream_is_golden() -> None:
    assert digest(stream(attention, FLASH, examples=200, seed=7)) == GOLDEN["attention"]
    assert digest(stream(lookup, LOOKUP, examples=200, seed=7)) == GOLDEN["lookup"]


def test_offsets_of_packed_sequences_are_in_no_layout_that_repeats_them() -> None:
    """Their first is 0 and their last the number of rows: repeated, they would give rows to no sequence."""
    found = {case.draw("offsets").layout for case in stream(lookup, LOOKUP, examples=200, seed=7)}
    assert found == {name for name in found if not layouts.LAYOUTS[name].repeats} and len(found) > 2
    others = {case.draw("rows").layout for case in stream(lookup, LOOKUP, examples=200, seed=7)}
    assert "broadcast" in others


def test_another_seed_gives_another_stream() -> None:
    first, second = (set(stream(attention, PLAIN, examples=126, seed=seed)) for seed in (0, 1))
    assert len(first & second) <= 3  # the plainest case of each dtype


def test_the_stream_does_not_depend_on_the_process(tmp_path: Path) -> None:
    """Hypothesis mixes constants of the modules that are loaded into its own draws: the stream must not notice."""
    constants = tmp_path / "constants.py"
    constants.write_text("\n".join(f"a{number} = {number}" for number in range(1, 400)) + "\nb = 1234567\nc = 'text'\n")
    script = f"""
import sys, random
sys.path.insert(0, {str(tmp_path)!r})
import constants, json, decimal, hypothesis
random.seed(5)
sys.path.insert(0, {str(TESTS)!r})
import hashlib
from case_families import FLASH, attention
from gradoracle.cases.stream import stream
lines = "\\n".join(case.line() for case in stream(attention, FLASH, examples=200, seed=7))
print(hashlib.sha256(lines.encode()).hexdigest()[:16])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == GOLDEN["attention"]


def test_nor_on_the_order_of_its_sets(tmp_path: Path) -> None:
    """Sizes of several batch members were drawn in the order of a set of dims, which is another one in each process."""
    script = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from dataclasses import replace
from case_families import FLASH, attention
from gradoracle.cases.case_space import batch_dims
from gradoracle.cases.stream import stream
tiled = replace(FLASH, tiles=lambda dtype, dims, blocks, order, arguments: {{"T": 16, "M": 16}})
for seed in range(3):
    print("\\n".join(case.line() for case in stream(attention, tiled, examples=400, seed=seed)))
assert len(batch_dims(attention.signature)) > 1
"""
    runs = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(4, 10)
    }
    assert len(runs) == 1


ASKED: Any = {"dtypes": ("bfloat16",), "dims": {"B": choices(2)}}


def keeps_to_its_domain(case: Case) -> bool:
    sizes_fit = case.dims["B"] == 2 and case.dims["T"] % 16 == 0 and case.dims["D"] in (64, 128)
    return sizes_fit and case.dtype == "bfloat16" and case.options == {"causal": True}


def test_the_stream_keeps_to_its_domain() -> None:
    assert all(map(keeps_to_its_domain, stream(attention, NARROW, **ASKED, examples=60)))


@settings(max_examples=60, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(strategy(attention, NARROW, **ASKED))
def test_the_hypothesis_strategy_keeps_to_its_domain(case: Case) -> None:
    assert keeps_to_its_domain(case)


def test_the_hypothesis_strategy_shrinks_in_a_users_own_test() -> None:
    smallest = find(
        strategy(attention, FLASH), lambda c: c.dims["T"] > 16 and c.dtype == "bfloat16",
        settings=settings(max_examples=500, database=None, derandomize=True, suppress_health_check=list(HealthCheck)),
    )  # fmt: skip
    assert smallest == replace(Case("attention", {**dict.fromkeys(attention.dims, 1), "T": 17}), dtype="bfloat16")


def test_the_plainest_case_has_nothing_but_its_dims() -> None:
    assert plainest(case_space(attention, FLASH)) == Case("attention", dict.fromkeys(attention.dims, 1))


def test_covering_takes_the_first_of_the_cases_that_fill_the_most() -> None:
    """Against the greedy choice written plainly, on pools with many ties."""
    for seed in range(30):
        source = Hashed(seed, "covering")
        names = [f"s{n}" for n in range(12)]
        pool = {Case("f", {"N": n + 1}): frozenset(name for name in names if not source.below(4)) for n in range(80)}
        expected = {name: source.below(10) for name in names}
        left, open_, plain = dict(pool), {name: n for name, n in expected.items() if n}, []
        while open_ and left and len(plain) < 40:
            best = max(left, key=lambda case: len(left[case] & open_.keys()))
            if not left[best] & open_.keys():
                break
            for name in left.pop(best) & open_.keys():
                open_[name] -= 1
                open_ = {name: n for name, n in open_.items() if n}
            plain.append(best)
        assert _covering(pool, expected, 40) == plain and plain


def test_the_backend_draws_what_its_script_says() -> None:
    numbers: list[int] = []
    with drawing([3, 9, 4, 99]) as backend:

        @settings(max_examples=20, backend=backend, phases=[Phase.generate], database=None, deadline=None)
        @given(st.integers(0, 9))
        def collect(number: int) -> None:
            numbers.append(number)

        collect()
    assert [n for n in numbers if n][:4] == [3, 9, 4, 9]
    for draw, what in (("draw_float", "a float"), ("draw_boolean", "a boolean"), ("draw_string", "a string")):
        with pytest.raises(NotImplementedError, match=f"{what} .* bounded integers"):
            getattr(Provider(None), draw)()
    with pytest.raises(NotImplementedError, match="an integer without bounds"):
        Provider(None).draw_integer(0, None)


def test_hashed_numbers_depend_on_seed_name_and_counter_alone() -> None:
    first, again, other = Hashed(1, "a"), Hashed(1, "a"), Hashed(2, "a")
    numbers = [first.below(3) for _ in range(40)]
    assert set(numbers) == {0, 1, 2} and numbers == [again.below(3) for _ in range(40)]
    assert numbers != [other.below(3) for _ in range(40)]
