"""Kernel speed: what a run writes, whatever its entries do; the hash of kernels; the page; the committed results."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from families import works
from kernel_speed import facts, run, stopwatch
from kernel_speed.chips import CHIPS, chip_of, floor
from kernel_speed.content import ROOT, content, files, normalised
from kernel_speed.page import COMMAND, write
from kernel_speed.rows import RESULTS, Line, append, keep, read
from kernel_speed.run import Asked
from kernel_speed.scans import scans
from pages import line_with, table_rows

from gradoracle.execution import device
from gradoracle.model.errors import UsageError
from gradoracle.project.shipped_names import family_names

device.prepare("cpu")
Make = Callable[..., Asked]


def row(work: str = "forward", size: int = 512, **entries: Callable[[], Any]) -> Any:
    """A row of a made-up family whose entries are given."""
    import torch

    return works.row(
        "toy", work, torch.float32, {"B": 2, "N": size}, entries, operations=4e9, moved=1e6, ready=("unlike",)
    )  # fmt: skip


def ends() -> Callable[[], int]:
    return partial(sum, range(99))


def dies() -> Callable[[], None]:
    return partial(os._exit, 3)


def hangs() -> Callable[[], None]:
    return partial(time.sleep, 600)


def fails() -> Callable[[], None]:
    raise ImportError("No module named 'jvp_flash_attention'")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes what a run of some rows, and of some scans, is asked for; few calls are timed."""
    monkeypatch.setattr(stopwatch, "count", lambda once: 3)

    def make(*rows: Any, scanned: tuple[Any, ...] = (), **more: Any) -> Asked:
        module = SimpleNamespace(rows=lambda: iter(rows), scans=lambda: iter(scanned))
        monkeypatch.setattr(run, "module_of", lambda family: module)
        return Asked(("toy",), tmp_path / "kernels.csv", device="cpu", **more)

    return make


def test_a_run_writes_one_row_an_entry_with_the_facts_of_the_run(asked: Make) -> None:
    given = asked(row(ours=ends, peer=ends), commit="abc")
    run.run(given, "fork")
    ours, peer = read(given.file)
    assert (ours.entry, ours.ours, peer.entry, peer.ours) == ("ours", "yes", "peer", "")
    assert ours.work == "toy forward float32 B2 N512" and ours.sizes == {"B": 2, "N": 512}
    assert ours.milliseconds is not None and ours.count == 3
    assert ours.lower is not None and ours.upper is not None and ours.lower <= ours.milliseconds <= ours.upper
    assert ours.commit == "abc" and ours.torch and ours.triton and ours.python and ours.date
    assert "matmul.allow_tf32=off" in ours.switches and "allow_fp16_bf16_reduction_math_sdp=off" in ours.switches
    assert (ours.operations, ours.moved, ours.arithmetic) == (4e9, 1e6, "float32")
    assert ours.floor_milliseconds is None  # this is no chip whose rates are known


def test_an_entry_that_fails_dies_or_hangs_has_a_row_that_says_so_and_the_others_are_timed(asked: Make) -> None:
    given = asked(row(ours=ends, jvp=fails, c=dies, d=ends, e=hangs, f=ends), row("backward", ours=ends), patience=6.0)
    run.run(given, "fork")
    rows = {line.place: line for line in read(given.file)}
    missing = {who: line.missing for (_, who), line in rows.items() if line.missing}
    assert set(missing) == {"jvp", "c", "e"} and missing["c"].endswith("code 3") and "6 s" in missing["e"]
    assert missing["jvp"].startswith("ImportError") and "jvp_flash_attention" in missing["jvp"]
    assert sum(line.milliseconds is not None for line in rows.values()) == 4 == len(rows) - 3


def test_a_device_that_is_lost_is_left_after_the_row_that_lost_it(asked: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    given = asked(row(ours=ends, bad=fails, other=ends))
    monkeypatch.setattr(run, "_usable", lambda device: False)
    run.run(given, "fork")
    assert [(line.entry, bool(line.missing)) for line in read(given.file)] == [
        ("ours", False), ("bad", True), ("other", False)
    ]  # fmt: skip


def test_processes_that_all_die_end_the_run(asked: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    given = asked(row(**{f"peer{i}": ends for i in range(9)}))
    monkeypatch.setattr(run, "facts_of", lambda *given: os._exit(1) if os.getpid() != parent else {})
    parent = os.getpid()
    with pytest.raises(RuntimeError, match="4 processes in a row"):
        run.run(given, "fork")
    assert len(read(given.file)) < 9


def test_no_entry_begins_after_the_time_is_up(asked: Make) -> None:
    given = asked(row(ours=ends), seconds=-1.0)
    run.run(given, "fork")
    assert read(given.file) == []


def test_rows_of_other_works_are_kept_and_those_of_the_same_replaced(asked: Make) -> None:
    given = asked(row(ours=ends), row("backward", ours=ends))
    run.run(given, "fork")
    run.run(replace(given, only="backward", commit="later"), "fork")
    assert sorted((line.derivative, line.commit == "later") for line in read(given.file)) == [
        ("backward", True), ("forward", False)
    ]  # fmt: skip


def test_a_run_goes_on_where_another_was_cut(asked: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = asked(row(ours=ends, peer=ends), row("backward", ours=ends))
    run.run(whole, "fork")
    before = read(whole.file)
    keep(whole.file, {before[2].place})
    more = replace(whole, missing=True)
    assert run.places(more) == [before[2].place]
    run.run(more, "fork")
    assert [line.place for line in read(whole.file)] == [line.place for line in before]
    assert read(whole.file)[:2] == before[:2]
    monkeypatch.setattr(run, "_content", lambda family: "changed")
    assert len(run.places(more)) == 3


def test_what_compiles_is_called_once_in_processes_before(asked: Make, tmp_path: Path) -> None:
    def touches(name: str) -> Callable[[], Any]:
        return lambda: partial((tmp_path / name).touch)

    given = asked(row(ours=touches("ours"), unlike=touches("unlike"), bad=fails), workers=2)
    run._compile(given, run.places(given), "fork")
    assert (tmp_path / "ours").exists() and not (tmp_path / "unlike").exists()


def test_without_a_gpu_nothing_is_timed_and_no_row_is_lost(asked: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    given = asked(row(ours=ends))
    run.run(given, "fork")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match="PyTorch sees no CUDA device here"):
        run.run(replace(given, device="cuda"), "fork")
    assert len(read(given.file)) == 1


def test_a_family_that_is_not_shipped_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^FAMILY 'sdp' is unknown: did you mean sdpa"):
        run.run(Asked(("sdp",), tmp_path / "kernels.csv", device="cpu"), "fork")


def test_works_of_scans_are_timed_once_and_last(asked: Make) -> None:
    own = row(ours=ends, peer=ends)
    given = asked(own, row("backward", ours=ends), scanned=(row(ours=ends), row(size=1024, ours=ends)))
    found = [(each.work.split()[1], each.dims["N"], each.scan, len(each.entries)) for each in run.rows_of(given)]
    assert found == [("forward", 512, "both", 2), ("backward", 512, "", 1), ("forward", 1024, "only", 1)]
    assert len(list(run.rows_of(replace(given, scans=False)))) == 2


def test_calls_are_fifty_at_least_unless_they_are_long() -> None:
    assert stopwatch.count(1e-5) == stopwatch.MOST and stopwatch.count(0.1) == stopwatch.LEAST == 50
    assert stopwatch.count(0.3) == 10 and stopwatch.count(60.0) == 3
    assert stopwatch.summary([5.0]) == stopwatch.Times(5.0, 5.0, 5.0, 1)
    assert stopwatch.summary([1.0, 2.0, 3.0, 4.0, 5.0]) == stopwatch.Times(3.0, 2.0, 4.0, 5)


class Watch:
    """A stopwatch of given times, whose graphs fail where they are told to."""

    def __init__(self, milliseconds: float, graph: str = "") -> None:
        self.milliseconds, self.failure = milliseconds, graph

    def times(self, call: Callable[[], object]) -> list[float]:
        return [call() or self.milliseconds] * 4  # type: ignore[list-item]

    def peak(self, factory: Callable[[], Any]) -> int:
        return 77

    def graph(self, factory: Callable[[], Any]) -> Any:
        if self.failure:
            raise RuntimeError(self.failure)
        return lambda: 0.25

    def release(self) -> None:
        pass


def test_only_short_calls_are_timed_as_graphs_and_one_that_cannot_be_says_why() -> None:
    def nothing() -> Callable[[], None]:
        return lambda: None

    short = stopwatch.measured(nothing, Watch(0.4))
    assert short.times.median == 0.4 and short.graph is not None and short.graph.median == 0.25 and short.peak == 77
    assert stopwatch.measured(nothing, Watch(0.5)).graph is None
    failed = stopwatch.measured(nothing, Watch(0.4, "capturing"))
    assert failed.graph is None and failed.no_graph == "RuntimeError: capturing"


def test_the_floor_is_the_longer_of_dots_and_memory_and_unknown_chips_have_none() -> None:
    h100, h200 = CHIPS
    assert chip_of("NVIDIA H100 80GB HBM3") is h100 and chip_of("NVIDIA H200") is h200
    assert chip_of("NVIDIA H100 PCIe") is None and chip_of("NVIDIA A100-SXM4-80GB") is None and chip_of("") is None
    dots = floor(h100, "bfloat16", 989.4e12, 3.35e9)
    assert dots is not None and (dots.milliseconds, dots.by) == (pytest.approx(1000.0), "dots")
    memory = floor(h200, "bfloat16", 989.4e6, 4.8e12)
    assert memory is not None and (memory.milliseconds, memory.by) == (pytest.approx(1000.0), "memory")
    sixfold, plain = floor(h100, "bf16x6", 1e15, 0.0), floor(h100, "bfloat16", 1e15, 0.0)
    assert sixfold is not None and plain is not None
    assert sixfold.milliseconds == pytest.approx(6 * plain.milliseconds)
    assert floor(None, "bfloat16", 1.0, 1.0) is None and floor(h100, "int8", 1.0, 1.0) is None


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    whole = Line(
        "toy", "toy forward", "forward", "float32", "B=2 N=512", "ours, too", "yes", "both", 1.5, 1.25, 2.0, 50, 0.5,
        0.25, 0.75, 60, "", 123, 4e9, 1e6, "float32", 0.125, "dots", kernels="00ff", switches="a=on; b=off",
    )  # fmt: skip
    bare = Line("toy", "toy forward", "forward", "float32", "", "peer", "", missing='it said "no", | and < more')
    keep(file, set())
    append(file, [whole, bare])
    assert read(file) == [whole, bare]
    keep(file, {whole.place})
    assert read(file) == [bare]
    assert read(tmp_path / "none.csv") == []


SOURCE = '''"""A module."""
import math

def area(r: float) -> float:
    """Of a circle."""
    return math.pi * r**2  # not exact
'''


def test_the_hash_ignores_comments_docstrings_and_layout_but_nothing_that_runs() -> None:
    same = "import math\n\n\ndef area(\n    r: float,\n) -> float:\n    '''Other words.'''\n    return math.pi*r ** 2\n"
    assert normalised(SOURCE) == normalised(same)
    for old, new in (("**2", "**3"), ("pi", "tau"), ("r: float", "r: int"), ("r: float", "r: float = 1.0")):
        assert normalised(SOURCE) != normalised(SOURCE.replace(old, new))
    assert normalised("x = '1'") != normalised("x = 1") != normalised("x = 1.0")
    documented = "def f():\n    'only this'\n"
    assert normalised(documented) != normalised(f"{documented}    return 1\n")


def test_blocks_of_gpus_that_are_not_timed_do_not_count() -> None:
    table = 'T = {((9, 0), "ieee", 64): (1, 2), ((8, 0), "ieee", 64): (3, 4), "own": 5}'
    assert normalised(table) == normalised(table.replace("3", "6")) == normalised(table.replace("(3, 4)", "None"))
    for before, after in (("(1, 2)", "(1, 6)"), ("(9, 0)", "(8, 6)"), ("5", "6")):
        assert normalised(table) != normalised(table.replace(before, after))
    assert normalised("T = {(8, 0): 1}") != normalised("T = {(8, 0): 2}")  # any pair is no capability
    assert normalised(table, every_gpu=True) != normalised(table.replace("3", "6"), every_gpu=True)


def test_the_hash_covers_a_familys_kernels_and_what_they_share(tmp_path: Path) -> None:
    for place, text in {
        "kernels/__init__.py": "",
        "kernels/shared.py": "A = 1\n",
        "kernels/unused.py": "A = 1\n",
        "kernels/one/__init__.py": "from .tiles import f\n",
        "kernels/one/tiles.py": "from ..shared import A as f\n",
        "kernels/one/offline.py": "A = 1\n",
        "kernels/two/__init__.py": "",
    }.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    names = [file.relative_to(tmp_path).as_posix() for file in files("one", tmp_path)]
    assert names == ["kernels/__init__.py", "kernels/one/__init__.py", "kernels/one/tiles.py", "kernels/shared.py"]
    before, other = content("one", tmp_path), content("two", tmp_path)
    (tmp_path / "kernels/unused.py").write_text("A = 2\n")
    (tmp_path / "kernels/shared.py").write_text("A = 1  # one\n")
    assert content("one", tmp_path) == before
    (tmp_path / "kernels/shared.py").write_text("A = 2\n")
    assert content("one", tmp_path) != before and content("two", tmp_path) == other


@pytest.mark.parametrize("family", family_names())
def test_the_hash_of_each_shipped_family_reaches_its_jitted_functions(family: str) -> None:
    texts = [file.read_text() for file in files(family)]
    assert sum("@triton.jit" in text for text in texts) >= 2
    assert {file.parent.name for file in files(family)} == {"kernels", family}


@pytest.mark.parametrize("family", family_names())
def test_committed_results_belong_to_the_committed_kernels(family: str) -> None:
    """Times of other kernels than those of this tree are no results of it."""
    if not RESULTS.exists():
        pytest.skip(f"{RESULTS.relative_to(ROOT)} is not there yet; `{COMMAND}` on a GPU makes it")
    found = {line.kernels for line in read(RESULTS) if line.family == family}
    assert found == {content(family)}, (
        f"the times of {family} in {RESULTS.relative_to(ROOT)} are of other kernels ({', '.join(found) or 'none'}); "
        f"run `{COMMAND} {family}` on a GPU and `{COMMAND} --write-page`, and commit both"
    )


def test_the_switches_are_those_of_this_process() -> None:
    from torch.backends import cuda

    before = cuda.matmul.allow_tf32
    try:
        cuda.matmul.allow_tf32 = not before
        assert f"matmul.allow_tf32={'off' if before else 'on'}" in facts.switches()
    finally:
        cuda.matmul.allow_tf32 = before


def made_up(size: int, entry: str, milliseconds: float | None, **more: Any) -> Line:
    work = f"toy forward bfloat16 B2 H4 N{size} D64"
    line = Line(
        "toy", work, "forward", "bfloat16", f"B=2 H=4 N={size} D=64", entry, "yes" if entry == "ours" else "", "both",
        milliseconds, operations=1e9 * size, moved=1e3 * size, arithmetic="bfloat16", floor_milliseconds=0.001 * size,
        floor_by="dots", kernels="0123", date="2026-01-02", card="NVIDIA H200", torch="2.11.0", commit="abcdef",
    )  # fmt: skip
    return replace(line, **more)


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    file = tmp_path / "kernels.csv"
    keep(file, set())
    append(
        file,
        [
            made_up(512, "ours", 1.0, lower=0.5, upper=1.5, count=50, graph_milliseconds=0.8, peak_bytes=2_000_000),
            made_up(512, "peer", 2.0),
            made_up(1024, "ours", 2.0, lower=1.75, upper=2.25, count=50, scan="only"),
            made_up(1024, "peer", None, missing="ImportError: no | such peer", scan="only"),
        ],
    )
    return file


def test_the_page_has_each_time_its_ratio_the_floor_and_why_some_are_missing(rows_file: Path, tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    write(rows_file, page)
    text = page.read_text()
    work = "forward bfloat16 B2 H4 N512 D64"
    (times,) = table_rows(text, "work, ms")
    assert times == {"work, ms": work, "floor": "0.512", "ours": "**1 / 0.8**", "peer": "2, 2.50x"}
    assert "NVIDIA H200" in text and "abcdef" in text and "4.8 TB/s" in text
    missing = line_with(text, "ImportError")
    assert missing.startswith("- peer: ") and "no / such peer" in missing and "N1024 D64" in missing
    (details,) = table_rows(text, "work")
    assert list(details.values()) == [
        work, "ours", "1", "0.5 to 1.5", "50", "0.8", "640 TFLOP/s", "64%", "dots, bfloat16",
    ]  # fmt: skip
    (memory,) = table_rows(text, "work, MB beyond the inputs")
    assert list(memory.values()) == [work, "2.0"]
    assert list(table_rows(text, "N")[1].values()) == ["1024", "8", "1.02", "2", "512 TFLOP/s", "1.25"]
    assert "kernels have changed" in text  # 0123 is the hash of nothing
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines()}) == 1
    picture = (tmp_path / "speed_toy.svg").read_text()
    assert "![time against length](speed_toy.svg)" in text
    assert picture.startswith("<svg") and "ours" in picture and "floor" in picture
    write(rows_file, page)
    assert (tmp_path / "speed_toy.svg").read_text() == picture and page.read_text() == text


def test_a_scan_is_the_works_that_differ_in_one_size(rows_file: Path) -> None:
    (scan,) = scans(read(rows_file))
    assert (scan.dim, scan.fixed) == ("N", "D64")
    assert {who: list(rows) for who, rows in scan.entries.items()} == {"ours": [512, 1024]}
    more = made_up(2048, "peer", 9.0)
    (scan,) = scans([more, *read(rows_file)])
    assert {who: list(rows) for who, rows in scan.entries.items()} == {"ours": [512, 1024], "peer": [512, 2048]}
    other = replace(made_up(2048, "ours", 1.0), dims="B=2 H=4 N=2048 D=128")
    assert len(scans([*read(rows_file), other])) == 1


def test_without_rows_one_sentence_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no rows; expected those of a run of"):
        write(tmp_path / "none.csv", tmp_path / "speed.md")
