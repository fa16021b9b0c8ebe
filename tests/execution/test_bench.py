"""Bench: what a row says of each entry, and that a work which was stopped never passes for one that ended."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from places import ROOT
from torch import Tensor

from gradoracle.execution import bench, device
from gradoracle.execution.bench import Row, Stopped, Timing, Watch, line, measure
from gradoracle.model.errors import UsageError
from gradoracle.project.shipped_names import family_names


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_watch_says_how_far_a_work_is_and_lets_it_end() -> None:
    clock, said = Clock(), io.StringIO()
    watch = Watch("peer", 40, stream=said, now=clock)
    for _ in range(40):
        watch.count()
        clock.now += 1.0
    assert watch.calls == 40
    assert said.getvalue().splitlines() == [
        "gradoracle: peer: 10 of about 40 kernel calls, 10 s",
        "gradoracle: peer: 20 of about 40 kernel calls, 20 s",
        "gradoracle: peer: 30 of about 40 kernel calls, 30 s",
    ]


def test_a_watch_stops_a_work_whose_time_is_up() -> None:
    clock = Clock()
    watch = Watch("peer", 40, seconds=5.0, stream=io.StringIO(), now=clock)
    for _ in range(6):
        watch.count()
        clock.now += 1.0
    with pytest.raises(Stopped, match=r"^stopped after 5 s and 6 of about 40 kernel calls$"):
        watch.count()


def test_a_work_that_ends_within_its_time_is_not_called_stopped() -> None:
    def watched(seconds: float) -> bool:
        watch = Watch("peer", 3, seconds, io.StringIO())
        for _ in range(3):
            watch.count()
        return True

    row = Row("work", {"ours": lambda: partial(sum, range(9)), "peer": lambda: partial(watched, 3600.0)})
    ended = measure(row, "cpu")
    assert ended.stopped == {} and "at least" not in line(ended, ["ours"])
    row = Row("work", {"ours": lambda: partial(sum, range(9)), "peer": lambda: partial(watched, -1.0)})
    cut = measure(row, "cpu")
    assert cut.stopped == {"peer": "stopped after -1 s and 0 of about 3 kernel calls"}
    (said,) = [words for words in line(cut, ["ours"]).splitlines() if words.startswith("    peer")]
    assert re.fullmatch(r"    peer: at least \S+ ms, at least \S+x ours, stopped after -1 s and 0 .*", said)


def test_a_peer_that_fails_says_why_and_has_no_time() -> None:
    def fails() -> object:
        raise ValueError("head dim 7\nis odd")

    row = Row("work", {"ours": lambda: lambda: 36, "peer": lambda: fails}, describe={"ours": "gives {}".format})
    timing = measure(row, "cpu")
    assert timing.missing == {"peer": "ValueError: head dim 7"} and list(timing.milliseconds) == ["ours"]
    assert timing.notes == {"ours": "gives 36"}
    assert "gives 36" in line(timing, ["ours"]) and "peer: ValueError: head dim 7" in line(timing, ["ours"])


def test_a_row_is_printed_in_its_own_order_with_ratios_to_ours() -> None:
    timing = Timing("work", {"ours": 50.0, "peer": 100_000.0}, first={"ours": 200.0, "peer": 100_000.0})
    assert line(timing, ["ours"]).splitlines() == [
        "work",
        "    ours: 50 ms, first call 200 ms",
        "    peer: 100 s, 2000x ours",
    ]
    two = Timing("work", {"ours (a)": 50.0, "ours (b)": 80.0, "peer": 1000.0})
    assert line(two, ["ours (a)", "ours (b)"]).splitlines()[1:] == [
        "    ours (a): 50 ms",
        "    ours (b): 80 ms",
        "    peer: 1 s, 20x ours (a), 12.5x ours (b)",
    ]
    order = {"ours": lambda: lambda: 1, "b": lambda: lambda: 2, "a": lambda: lambda: 3}
    assert list(measure(Row("work", order), "cpu").milliseconds) == ["ours", "b", "a"]


def right(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def without_dv(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return right(q, k, 0.5 * v + 0.5 * v.detach())


@pytest.fixture
def verdict_row() -> Callable[..., Row]:
    device.prepare("cpu")
    from gradoracle.model.kernel import Kernel

    def make(call: Callable[..., Tensor], seconds: float | None = None) -> Row:
        kernel = Kernel("k", "sdpa", call, options={"scale": (), "causal": ()})
        row: Row = bench.module_of("sdpa")._verdict_against_gradcheck("a kernel", kernel, seconds)
        return row

    return make


def test_the_verdict_row_distinguishes_a_wrong_kernel_from_a_correct_one(verdict_row: Callable[..., Row]) -> None:
    fast = "gradcheck, fast mode"
    for call, dv in ((right, "holds"), (without_dv, "violated")):
        row = verdict_row(call)
        for who in row.ours:
            assert row.describe[who](row.entries[who]()()) == f"o holds dq holds dk holds dv {dv}"
        timing = measure(Row(row.work, {fast: row.entries[fast]}, describe=row.describe), "cpu")
        assert timing.notes == ({fast: "passes"} if call is right else {})
        assert timing.missing.get(fast, "").startswith("" if call is right else "GradcheckError: Jacobian mismatch")


def test_gradcheck_stopped_by_the_user_is_no_gradcheck_that_passed(verdict_row: Callable[..., Row]) -> None:
    row = verdict_row(right, 1e-9)
    who = "gradcheck, defaults"
    timing = measure(Row(row.work, {who: row.entries[who]}, 0.0, row.describe), "cpu")
    assert timing.notes == {} and timing.first == {}
    assert timing.stopped == {who: "stopped after 1e-09 s and 0 of about 25088 kernel calls"}


def test_the_certified_row_gives_time_and_proven_radius(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "bench.json"
    (timing,) = bench.run("sdpa", "cpu", str(output), "certified")
    said = re.fullmatch(r"proven radius at most (\S+) at 128 bits", timing.notes["gradoracle"])
    assert said is not None and 0 < float(said[1]) < 1e-30
    assert timing.notes["gradoracle"] in capsys.readouterr().out
    record = json.loads(output.read_text())
    assert record["rows"][0]["notes"] == timing.notes and record["environment"]["torch"]


@pytest.mark.parametrize("name", family_names())
def test_every_shipped_family_has_rows_in_the_source_tree(name: str) -> None:
    device.prepare("cpu")
    file = bench.module_of(name).__file__
    assert file is not None and Path(file) == ROOT / "benchmarks" / "families" / f"{name}.py"


def test_without_the_source_tree_one_sentence_says_what_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "source_tree", lambda: tmp_path)
    with pytest.raises(
        UsageError, match=r"^the benchmarks of sdpa are in gradoracle's repository, .*; expected a clone"
    ):
        bench.run("sdpa", "cpu")
    with pytest.raises(UsageError, match="there are no benchmarks for 'nosuch'"):
        bench.run("nosuch", "cpu")
    (tmp_path / "benchmarks" / "families").mkdir(parents=True)
    with pytest.raises(UsageError, match="there are no benchmarks for 'sdpa'"):
        bench.run("sdpa", "cpu")


def test_mistakes_of_usage_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no benchmark row of sdpa on cpu contains 'backward'"):
        bench.run("sdpa", "cpu", only="backward")
    for name in ("nosuch", "oracle", "../families/sdpa"):
        with pytest.raises(UsageError, match=f"there are no benchmarks for '{name}'"):
            bench.run(name, "cpu")
    with pytest.raises(UsageError, match="cannot be written"):
        bench.run("sdpa", "cpu", str(tmp_path / "missing" / "bench.json"), "certified")
