"""Compilations of Triton are reported to the current run, and their time is not part of a call's limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from programs import until
from triton.runtime.jit import JITFunction

from gradoracle.host import compiling
from gradoracle.host.compiling import Compiling


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What Triton's own method is called with, by a stand-in."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(JITFunction, compiling._METHOD, lambda *arguments: found.append(arguments))
    monkeypatch.setattr(compiling, "_watching", None)
    return found


def multiply() -> None:
    """Stands for a kernel."""


def test_a_compilation_is_a_phase_of_its_own_without_a_limit(compiled: list[tuple[Any, ...]]) -> None:
    phases: list[tuple[str | None, float | None]] = []
    own = Compiling()
    own.watch()
    own.begin("forward", 60.0, lambda name, limit: phases.append((name, limit)))
    getattr(JITFunction, compiling._METHOD)(multiply, 7)
    assert compiled == [(multiply, 7)] and own.seconds > 0.0
    assert phases == [("forward, compiling multiply", None), ("forward", 60.0)]
    own.end()
    getattr(JITFunction, compiling._METHOD)(multiply, 8)
    assert len(compiled) == len(phases) == 2


def test_of_many_runs_in_one_process_the_last_alone_is_told(compiled: list[tuple[Any, ...]]) -> None:
    several = [Compiling() for _ in range(2000)]  # each putting in its own would be too deep a stack
    for each in several:
        each.watch()
    getattr(JITFunction, compiling._METHOD)(multiply)
    assert compiled == [(multiply,)]
    assert several[-1].seconds > 0.0 and not any(each.seconds for each in several[:-1])


def test_the_time_that_another_process_compiles_is_not_counted(compiled: list[tuple[Any, ...]]) -> None:
    own = Compiling()
    own.watch()
    own.longest = 5.0
    getattr(JITFunction, compiling._METHOD)(multiply, 7)
    assert 0.0 < own.seconds < 1.0 and own.longest == 5.0


CLAIMING = """
import sys, time
from gradoracle.host.compiling import claimed
name, log, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
with claimed(name):
    with open(log, "a") as file:
        print("begins", name, file=file, flush=True)
    time.sleep(seconds)
    with open(log, "a") as file:
        print("ends", name, file=file, flush=True)
"""


def claiming(name: str, log: Path, cache: Path, seconds: float) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    return subprocess.Popen([sys.executable, "-c", CLAIMING, name, str(log), str(seconds)], env=environment)


def test_of_processes_that_want_a_compilation_one_makes_it_at_a_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    children = [claiming("key_kernel", log, tmp_path / "cache", 0.3) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert log.read_text().splitlines() == ["begins key_kernel", "ends key_kernel"] * 3


def test_other_compilations_do_not_wait_and_a_dead_process_gives_its_own_up(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = claiming("key_kernel", log, tmp_path / "cache", 600.0)
    assert until(lambda: log.exists() and "begins key_kernel" in log.read_text(), 30.0)
    assert claiming("query_kernel", log, tmp_path / "cache", 0.0).wait() == 0
    waits = claiming("key_kernel", log, tmp_path / "cache", 0.0)
    time.sleep(0.5)
    assert waits.poll() is None
    first.kill()
    first.wait()
    assert waits.wait() == 0 and "ends key_kernel" in log.read_text().splitlines()


def test_without_a_cache_that_can_be_written_everybody_compiles(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, where a folder is asked for")
    assert claiming("key_kernel", tmp_path / "log", tmp_path / "cache", 0.0).wait() == 0


AHEAD = """
import json, sys
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


class Driver:  # of a GPU that is not here: Triton compiles for it
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))


driver.set_active(Driver())
import torch
from gradoracle.host.compiling import Compiling, compile_ahead, rehearsing
from gradoracle.kernels import splitting

compiling = Compiling()
compiling.watch()
x = torch.ones(1, 1, 4, 16)
with rehearsing() as found:
    splitting.parts(x), splitting.parts(x), splitting.parts(x[..., :8])
assert compiling.seconds == 0.0 and len(found) == 2, found
seconds = [compile_ahead(each) for each in found]
splitting.parts_kernel.device_caches.clear()  # as in another process
whole = JITFunction.run
JITFunction.run = lambda function, *arguments, **keywords: whole(function, *arguments, **{**keywords, "warmup": True})
compiling.longest = 0.0
splitting.parts(x)
with rehearsing() as found:
    splitting.parts(x)
assert found == []  # this process has it
print(json.dumps([min(seconds), compiling.longest]))
"""


def test_what_calls_need_is_found_without_a_launch_and_compiled_ahead_into_the_cache(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", AHEAD], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compiled, again = json.loads(done.stdout)
    assert again < compiled / 3  # read from the cache
    assert len(list(tmp_path.glob("*/parts_kernel.cubin"))) == 2


def test_on_a_gpu_a_rehearsal_leaves_the_memory_to_cases_that_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    fakes = {
        "get_device_properties": lambda device: SimpleNamespace(total_memory=80 << 30),
        "current_device": lambda: 0,
        "memory_reserved": lambda: 3 << 30,
        "set_per_process_memory_fraction": shares.append,
        "is_available": lambda: True,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    with pytest.raises(KeyError), compiling.rehearsing():
        raise KeyError
    assert shares == [0.05, 1.0]
