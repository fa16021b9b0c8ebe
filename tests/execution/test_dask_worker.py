"""The protected processes of a dask worker: they end in time, whatever became of who sent the cases."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster
from places import TESTS

from gradoracle.check.setup import Setup
from gradoracle.check.worker import ENTRY
from gradoracle.execution import dask_worker
from gradoracle.execution.dask_worker import Order
from gradoracle.project.provenance import Provenance

FILE = TESTS / "scaled.py"
SETUP = Setup(f"{FILE}:right", None, "cpu", "auto", {}, {}, 60.0, None, ())

pytestmark = pytest.mark.xdist_group("cluster")


class Stub:
    """In place of a protected process."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def close(self) -> None:
        """End it."""
        self.ended.set()


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Stub]]:
    """All that are started."""
    found: list[Stub] = []

    def started(order: bytes, turn: int) -> Any:
        found.append(Stub())
        return dask_worker._Pool(found[-1], turn, {})  # type: ignore[arg-type]

    monkeypatch.setattr(dask_worker, "_started", started)
    monkeypatch.setattr(dask_worker, "_KEPT_SECONDS", 0.4)
    yield found
    assert all(stub.ended.wait(5) for stub in found)
    assert not dask_worker._idle and not dask_worker._turns, "nothing stays behind"


def order() -> bytes:
    return pickle.dumps(Order(ENTRY, SETUP, "right", "cpu", "/", Provenance({}, {})))


def test_an_idle_process_ends_by_itself(stubs: list[Stub]) -> None:
    """One that is in use does not, and neither does one that was used meanwhile."""
    given = order()
    with dask_worker._pool(given, "tcp://a:1") as busy, dask_worker._pool(given, "tcp://a:1"):
        pass
    with dask_worker._pool(given, "tcp://a:1") as again:
        time.sleep(0.6)
    assert len(stubs) == 2 and again is busy and sum(stub.ended.is_set() for stub in stubs) == 1
    begun = time.monotonic()
    assert all(stub.ended.wait(5) for stub in stubs) and time.monotonic() - begun > 0.2


def test_a_case_that_comes_after_its_run_leaves_nothing_behind(stubs: list[Stub]) -> None:
    given = order()
    dask_worker.release(given)
    with dask_worker._pool(given, "tcp://a:1"):
        assert not dask_worker._idle
    assert stubs[0].ended.is_set() and not dask_worker._idle and not dask_worker._turns


def test_a_run_that_asks_for_the_same_is_another(stubs: list[Stub]) -> None:
    first, second = order(), order()
    with dask_worker._pool(second, "tcp://a:1"):
        dask_worker.release(first)
    assert not stubs[0].ended.is_set() and list(dask_worker._idle) == [second]


def test_processes_of_a_client_that_was_killed_end(tmp_path: Path) -> None:
    program = f"import sys; from gradoracle.cli.main import run; sys.exit(run({words('ADDRESS')!r}))"

    def kept(seconds: float) -> None:
        dask_worker._KEPT_SECONDS = seconds

    def idle() -> int:
        return sum(len(pools) for pools in dask_worker._idle.values())

    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
        ) as local,
        Client(local) as client,
    ):
        client.run(kept, 1.5)
        address = str(local.scheduler_address)
        sender = subprocess.Popen(
            [sys.executable, "-c", program.replace("ADDRESS", address)], stdout=subprocess.DEVNULL, cwd=tmp_path
        )
        assert expected(lambda: processes(tmp_path) == 1, 60)
        time.sleep(2.0)
        os.kill(sender.pid, signal.SIGKILL)
        sender.wait()
        assert expected(lambda: processes(tmp_path) == 0, 15)
        assert set(client.run(idle).values()) == {0}


def words(address: str) -> list[str]:
    target = f"{FILE}:takes_half_a_second"
    return ["check", target, "--device", "cpu", "--property", "forward_matches_the_oracle", "--scheduler", address]


def expected(holds: Any, seconds: float) -> bool:
    """Whether something comes to hold in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(0.2)
    return False


def processes(folder: Path) -> int:
    """The protected processes that work in a folder: that of the client, also below a dask worker."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_protected = (process / "comm").read_text().strip() == "gradoracle-work"
            found += is_protected and (process / "cwd").resolve() == folder
    return found
