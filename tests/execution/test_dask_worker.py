"""The protected processes of a dask worker: they end in time, whatever became of who sent the cases."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster
from places import TESTS

from gradoracle.execution import dask_pool

FILE = TESTS / "scaled.py"

pytestmark = pytest.mark.xdist_group("cluster")


def test_processes_of_a_client_that_was_killed_end(tmp_path: Path) -> None:
    program = f"import sys; from gradoracle.cli.main import run; sys.exit(run({words('ADDRESS')!r}))"

    def kept(seconds: float) -> None:
        dask_pool.KEPT_SECONDS = seconds

    def held() -> int:
        return dask_pool._process.cache_info().currsize

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
        assert set(client.run(held).values()) == {0}


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
