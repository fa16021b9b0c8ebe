"""What numba compiled is found again for the same file wherever it lies, and never for another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradoracle.oracle.exact.machine_code import HAS_NUMBA
from gradoracle.project.cache import VARIABLE

SOURCE = """
from gradoracle.oracle.exact.machine_code import jitted


@jitted
def added(x, y):
    return x + y


print(added(2.0, 3.0), sum(added.stats.cache_hits.values()), sum(added.stats.cache_misses.values()))
"""


def _run(folder: Path, text: str, cache: Path | str) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "numbers_of.py").write_text(text)
    return _run_module(folder, "numbers_of", cache)


def _run_module(folder: Path, module: str, cache: Path | str) -> list[str]:
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, sys.argv[1]); import {module}", str(folder)]
    environment = {VARIABLE: str(cache), "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
def test_it_is_compiled_once_for_each_content(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert _run(tmp_path / "one", SOURCE, cache) == ["5.0", "0", "1"]
    assert _run(tmp_path / "two", SOURCE, cache) == ["5.0", "1", "0"]
    assert _run(tmp_path / "two", SOURCE.replace("x + y", "x * y"), cache) == ["6.0", "0", "1"]
    assert _run(tmp_path / "two", SOURCE, cache) == ["5.0", "1", "0"]


CALLER = """
from gradoracle.oracle.exact.machine_code import jitted
from numbers_of import added


@jitted
def doubled(x):
    return added(x, x) + 1.0


print(doubled(3.0))
"""


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
def test_a_change_of_a_called_function_in_another_file_is_compiled(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    for operation, expected in (("x + y", "7.0"), ("x * y", "10.0"), ("x + y", "7.0")):
        _run(folder, SOURCE.replace("x + y", operation), tmp_path / "cache")
        (folder / "calls_it.py").write_text(CALLER)
        assert _run_module(folder, "calls_it", tmp_path / "cache")[-1] == expected


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
def test_without_a_cache_numba_keeps_it_in_its_own_way(tmp_path: Path) -> None:
    assert _run(tmp_path / "one", SOURCE, "") == ["5.0", "0", "1"]
    (tmp_path / "file").write_text("in the place of a folder")
    assert _run(tmp_path / "one", SOURCE, tmp_path / "file") == ["5.0", "1", "0"]
