"""Hidden faults: a scaled mistake is t of the planted one, and the largest hidden t is what the search ends at."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from hidden_faults import (
    CAUGHT,
    MISSED,
    SEEN,
    SMALLEST,
    UNSCALED,
    UNSEEN,
    Row,
    Search,
    read,
    scaled,
    searched,
    table,
    write,
)
from pages import line_with, table_rows

from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.outcome import Fate, MutantResult
from gradoracle.mutation.plant import mutants
from gradoracle.mutation.sources import Source
from gradoracle.mutation.trial import Stage

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def kernel(X, Y, N, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    x = tl.load(X + row * N + n, mask=n < N, other=0.0).to(tl.float32)
    p = tl.exp(x * 1.5) - scale * tl.sum(x * x, 0)
    acc = tl.zeros([BLOCK], tl.float32)
    for step in range(0, N - 1):
        acc += p * 0.5
    tl.store(Y + row * N + n, tl.where(x > 0, acc, p), mask=n < N)
"""
T = 0.25
FUNCTIONS = SimpleNamespace(exp=math.exp, exp2=math.exp2)
MUTANTS = mutants(SOURCE, "kernel.py")


def planted(operator: str, before: str) -> list[Mutant]:
    """The mutants of an operator at a piece of code."""
    found = [each for each in MUTANTS if each.operator == operator and each.before == before]
    assert found, sorted({(each.operator, each.before) for each in MUTANTS})
    return found


@pytest.mark.parametrize(
    ("operator", "before"),
    [
        ("factor dropped", "x * x"),
        ("factor dropped", "x * 1.5"),
        ("constant", "1.5"),
        ("constant", "0.5"),
        ("function replaced", "tl.exp(x * 1.5)"),
    ],
)
def test_the_value_is_that_of_the_kernel_and_a_share_of_the_mistake(operator: str, before: str) -> None:
    for mutant in planted(operator, before):
        made = scaled(mutant, T)
        assert made is not None
        old, new, between = (
            eval(code, {"x": 3.0, "tl": FUNCTIONS}) for code in (mutant.before, mutant.after, made.after)
        )
        assert old != new and between == old + T * (new - old)
        compile(made.source, "made", "exec")
        assert made.source.replace(made.after, mutant.before) == SOURCE, "nothing else is changed"


def test_a_sum_that_is_added_to_is_one_statement() -> None:
    (sign,) = planted("sign", "acc += p * 0.5")
    made = scaled(sign, T)
    assert made is not None and made.after.startswith("acc = (")
    names = {"acc": 8.0, "p": 4.0}
    exec(made.after, names)
    assert names["acc"] == 10 + T * (6 - 10)


def test_masks_indices_and_bounds_have_no_magnitude() -> None:
    without = [each for each in MUTANTS if scaled(each, T) is None]
    assert {"bound shifted", "mask dropped", "stride dropped", "store dropped", "loop start"} <= {
        each.operator for each in without
    }
    changed = [each for each in MUTANTS if scaled(each, T) is not None]
    assert changed and not any("n < N" in each.before or each.before in ("row * N", "N - 1") for each in changed)


def search(mutant: Mutant) -> Search:
    return Search("toy", mutant, Source("kernel", "kernel.py", "kernel.py", SOURCE), (0,), {})


def found(decisive: float, others: float, widened: float, end: Fate = Fate.SURVIVED) -> Row:
    """The row of a mutant that properties see from a t on; below that the decisive ones end as ``end``."""
    (mutant,) = planted("sign", "acc += p * 0.5")

    def judged(exponent: int, stage: Stage) -> MutantResult:
        least = {Stage.DECISIVE: decisive, Stage.OTHERS: others, Stage.WIDENED: widened}[stage]
        if 4.0**-exponent >= least:
            return MutantResult(mutant, Fate.KILLED, stage.name, (stage.name,), "case:1 toy")
        return MutantResult(mutant, end if stage is Stage.DECISIVE else Fate.SURVIVED, reason="raised")

    return searched(search(mutant), judged)


@pytest.mark.parametrize("least", [4.0**-n for n in range(SMALLEST)])
def test_the_t_is_the_largest_at_which_no_property_as_written_is_violated(least: float) -> None:
    row = found(least, math.inf, 1e-12)
    assert (row.result, float(row.t), row.seen_by) == (CAUGHT, pytest.approx(least / 4, rel=0.1), "DECISIVE")
    assert row.caught_by == "WIDENED" and row.case == "case:1 toy"
    if least / 64 > 4.0**-SMALLEST:
        row = found(least, least / 16, 1e-12)
        assert (row.seen_by, float(row.t)) == ("OTHERS", pytest.approx(least / 64, rel=0.1))


def test_a_miss_says_from_where_on_the_widened_kernel_sees_it() -> None:
    row = found(1e-2, math.inf, 0.1)
    assert (row.result, row.t, row.widened_from) == (MISSED, "0.0039", "0.25")
    assert found(1e-2, math.inf, math.inf).widened_from == ""
    assert found(math.inf, math.inf, math.inf).result == UNSEEN and found(math.inf, math.inf, 1.0).result == CAUGHT


def test_what_is_seen_at_every_t_or_cannot_run_is_not_hidden() -> None:
    assert (found(0.0, math.inf, 0.0).result, found(0.0, math.inf, 0.0).seen_by) == (SEEN, "DECISIVE")
    assert found(1e-3, 0.0, 0.0).result == SEEN
    row = found(1e-3, math.inf, 0.0, Fate.CRASHED)
    assert (row.result, row.seen_by, row.t) == (UNSCALED, "raised", "")


def test_rows_are_kept_by_family_and_add_up(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    caught, missed = found(1e-2, math.inf, 1e-12), found(1e-2, math.inf, 0.1)
    seen, unseen = found(0.0, math.inf, 0.0), found(math.inf, math.inf, math.inf)
    write(file, [caught, missed])
    write(file, [Row("other", "k", "sign", "m:1 f", "a, b", 'say "b"', CAUGHT, seconds=2.5)])
    write(file, [caught, caught, missed, seen, unseen])
    assert [row.family for row in read(file)] == ["other", *["toy"] * 5]
    assert read(file)[1:] == [caught, caught, missed, seen, unseen]
    text = table(read(file))
    shown = {row["mutants"]: row for row in table_rows(text, "mutants")}
    for name, hidden, share in (("toy", 3, "66.7%"), ("all", 4, "75.0%")):
        row = shown[name]
        assert (row["hidden"], row["caught"], row["share"]) == (str(hidden), str(hidden - 1), share)
        assert row["not hidden"] == f"1 {UNSEEN}, 1 {SEEN}"
    assert "DECISIVE" in line_with(text, f"from t = {missed.widened_from}")
    assert read(tmp_path / "none.csv") == []
