"""What numba compiled is found again for the same file wherever it lies, and never for another."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gradoracle.model import machine_code
from gradoracle.model.cache import VARIABLE, key_of, sealed
from gradoracle.model.machine_code import HAS_NUMBA, jitted, side_by_side

SOURCE = """
from gradoracle.model.machine_code import jitted


@jitted
def added(x, y):
    return x + y


print(added(2.0, 3.0), sum(added.stats.cache_hits.values()), sum(added.stats.cache_misses.values()))
"""


needs_numba = pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")


def _run(folder: Path, text: str, cache: Path | str) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "numbers_of.py").write_text(text)
    return _ran(folder, "numbers_of", cache).stdout.split()


def _ran(folder: Path, module: str, cache: Path | str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, sys.argv[1]); import {module}", str(folder)]
    environment = {VARIABLE: str(cache), "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True)


@needs_numba
def test_it_is_compiled_once_for_each_content(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert _run(tmp_path / "one", SOURCE, cache) == ["5.0", "0", "1"]
    assert _run(tmp_path / "two", SOURCE, cache) == ["5.0", "1", "0"]
    assert _run(tmp_path / "two", SOURCE.replace("x + y", "x * y"), cache) == ["6.0", "0", "1"]
    assert _run(tmp_path / "two", SOURCE, cache) == ["5.0", "1", "0"]


CALLER = """
from gradoracle.model.machine_code import jitted
from numbers_of import added


@jitted
def doubled(x):
    return added(x, x) + 1.0


print(doubled(3.0))
"""


@needs_numba
def test_a_change_of_a_called_function_in_another_file_is_compiled(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    for operation, expected in (("x + y", "7.0"), ("x * y", "10.0"), ("x + y", "7.0")):
        _run(folder, SOURCE.replace("x + y", operation), tmp_path / "cache")
        (folder / "calls_it.py").write_text(CALLER)
        assert _ran(folder, "calls_it", tmp_path / "cache").stdout.split()[-1] == expected


@needs_numba
def test_without_a_cache_no_code_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the place of a folder")
    for cache in ("", tmp_path / "file"):
        for _ in range(2):
            assert _run(tmp_path / "one", SOURCE, cache) == ["5.0", "0", "1"]
    assert not list(tmp_path.rglob("*.nb[ci]")), "numba would unpickle whatever lies there"


@needs_numba
def test_code_that_another_program_wrote_is_not_loaded(tmp_path: Path) -> None:
    """It would be a pickle, and a pickle is a program."""
    folder, cache = tmp_path / "one", tmp_path / "cache"
    assert _run(folder, SOURCE, cache) == ["5.0", "0", "1"]
    (file,) = (cache / "numba").rglob("added-*")
    program = b"cos\nsystem\n(S'touch %s'\ntR." % str(tmp_path / "ran").encode()
    for seal in (b"", hashlib.sha256(program).hexdigest().encode() + b"\n", file.read_bytes()[:65]):
        file.write_bytes(seal + program)
        done = _ran(folder, "numbers_of", cache)
        assert done.stdout.split() == ["5.0", "0", "1"] and "is not what was written here" in done.stderr
        assert not (tmp_path / "ran").exists()
    file.write_bytes(sealed(key_of(cache), file.name, program))  # by who has the key
    _ran_freely(folder, cache)
    assert (tmp_path / "ran").exists()


def _ran_freely(folder: Path, cache: Path) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):
        _ran(folder, "numbers_of", cache)


FULL = "import resource\n\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"


@needs_numba
def test_a_full_disk_and_a_damaged_entry_cost_time_and_no_result(tmp_path: Path) -> None:
    folder, cache = tmp_path / "one", tmp_path / "cache"
    assert _run(folder, FULL + SOURCE, cache) == ["5.0", "0", "1"]
    (line,) = _ran(folder, "numbers_of", cache).stderr.splitlines()
    assert "machine code is not kept" in line and "file too large" in line
    assert _run(folder, SOURCE, cache) == ["5.0", "0", "1"]
    for file in cache.rglob("added-*"):
        file.write_bytes(file.read_bytes()[:40])
    done = _ran(folder, "numbers_of", cache)
    assert (
        done.stdout.split()[0] == "5.0"
        and "is not what was written" in done.stderr
        and len(done.stderr.splitlines()) == 1
    )
    assert _run(folder, SOURCE, cache) == ["5.0", "1", "0"]  # it was written anew


@needs_numba
def test_without_any_folder_functions_are_compiled_in_every_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import numba

    compiler = numba.njit

    def without(*given: Any, **options: Any) -> Any:
        if options.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return compiler(*given, **options)

    monkeypatch.setattr(numba, "njit", without)
    assert jitted(lambda x: x + 1.0)(2.0) == 3.0
    assert "machine code is not kept" in capsys.readouterr().err


LARGE = 1 << 24  # bytes


@needs_numba
def test_large_work_runs_side_by_side_and_comes_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(3)))
    together = threading.Barrier(3, timeout=60.0)

    def work(number: int) -> int:
        together.wait()
        return number

    assert side_by_side(work, 3, LARGE) == [0, 1, 2]


@pytest.mark.parametrize(
    ("size", "cores", "in_flight", "has_numba"),
    [(1000, 3, 1 << 32, True), (LARGE, 1, 1 << 32, True), (LARGE, 3, LARGE, True), (LARGE, 3, 1 << 32, False)],
)
def test_small_work_one_core_little_memory_and_no_numba_are_one_after_the_other(
    size: int, cores: int, in_flight: int, has_numba: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setattr(machine_code, "_IN_FLIGHT", in_flight)
    monkeypatch.setattr(machine_code, "HAS_NUMBA", has_numba)
    own = threading.get_ident()
    assert side_by_side(lambda number: (number, threading.get_ident()), 3, size) == [(n, own) for n in range(3)]


def test_what_one_piece_of_work_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(3)))

    def work(number: int) -> float:
        return 1.0 / (number - 1)

    with pytest.raises(ZeroDivisionError):
        side_by_side(work, 3, LARGE)
