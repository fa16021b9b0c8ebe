"""A dask cluster that goes bad: before the first case a sentence, and after it what is known, as interrupted."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from distributed import LocalCluster
from places import TESTS

from gradoracle.check.execute import executor_for
from gradoracle.check.plan import plan, resolved
from gradoracle.check.run import check
from gradoracle.cli import main
from gradoracle.execution import dask_pool, environment
from gradoracle.model.errors import UsageError
from gradoracle.model.job import Job
from gradoracle.model.verdict import Status
from gradoracle.project.request import Request

FILE = TESTS / "scaled.py"
FORWARD = "forward_matches_the_oracle"

pytestmark = pytest.mark.xdist_group("cluster")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of the scheduler of one dask worker."""
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    ) as local:
        yield str(local.scheduler_address)


def request(kernel: str, address: str, **fields: Any) -> Request:
    asked = Request(f"{FILE}:{kernel}", device="cpu", property=FORWARD, scheduler=address)
    return dataclasses.replace(asked, **{"examples": 8, "shrink_seconds": 6.0, **fields})


def unfit(monkeypatch: pytest.MonkeyPatch, place: int, failing: Callable[[], Any]) -> None:
    """Have a dask worker fail on the case of a place, from 0, and on all that come after it."""
    real, sent = dask_pool.DaskPool._submit, []

    def submit(self: Any, job: Any, *args: Any, **more: Any) -> Any:
        sent.extend([job] if isinstance(job, Job) else [])
        return real(self, job, *args, **more) if len(sent) <= place else self._client.submit(failing, pure=False)

    monkeypatch.setattr(dask_pool.DaskPool, "_submit", submit)


def other_files() -> None:
    raise UsageError("the dask worker tcp://late:1 cannot check it: it has another own.py; expected the same files")


def unreadable() -> None:
    raise ImportError("no module named late")


def by_value(function: Callable[[], None]) -> Callable[[], None]:
    """The same function for a process that cannot import this module."""
    from distributed.protocol.pickle import cloudpickle

    given: Callable[[], None] = cloudpickle.loads(cloudpickle.dumps(function))
    given.__module__ = "__main__"
    return given


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        (other_files, "tcp://late:1 cannot check it: it has another own.py; expected the same files"),
        (unreadable, "a dask worker cannot judge cases: ImportError: no module named late"),
    ],
)
def test_a_bad_worker_that_comes_late_keeps_what_is_known(
    address: str, monkeypatch: pytest.MonkeyPatch, failing: Callable[[], None], said: str
) -> None:
    unfit(monkeypatch, 3, by_value(failing))
    report = check(request("loses_its_tail", address))
    assert report.cases_run == 3 and report.exit_code in (1, 4)
    assert report.interrupted.endswith(f"{said}, after 3 of 8 cases")


def test_a_bad_worker_before_the_first_result_is_said(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unfit(monkeypatch, 0, by_value(other_files))
    with pytest.raises(UsageError, match=r"it has another own\.py"):
        check(request("right", address))


@pytest.mark.parametrize("kernel", ["loses_its_tail", "raises_index_error"])
def test_a_cluster_that_is_lost_while_a_case_is_made_smaller_keeps_what_is_known(
    address: str, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    unfit(monkeypatch, 10, by_value(other_files))  # of 8 cases
    report = check(request(kernel, address))
    (verdict,) = report.verdicts
    assert report.cases_run == 8 and report.exit_code == 1
    assert verdict.status in (Status.VIOLATED, Status.CRASHED) and verdict.counterexample is not None
    assert report.interrupted.endswith("expected the same files, while shrinking")
    assert verdict.counterexample.shrink_note == "shrinking was interrupted"


def test_a_cluster_that_loses_all_its_workers_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = dask_pool.DaskPool._result, []

    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as local:

        def result(self: Any, job: Any, *args: Any, **more: Any) -> Any:
            asked.extend([job] if isinstance(job, Job) else [])
            if len(asked) == 3:
                local.scale(0)
                while self._client.nthreads():
                    time.sleep(0.05)
            return real(self, job, *args, **more)

        monkeypatch.setattr(dask_pool, "IDLE_SECONDS", 1.0)
        monkeypatch.setattr(dask_pool.DaskPool, "_result", result)
        report = check(request("right", str(local.scheduler_address)))
    assert report.exit_code == 4 and 2 <= report.cases_run < 8
    assert "the dask cluster has had no worker for 1 s, after" in report.interrupted


def test_a_cluster_that_is_lost_while_it_is_looked_at_is_said(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise OSError("comm closed")

    monkeypatch.setattr(dask_pool.Client, "run", lost)
    assert main.run(["check", f"{FILE}:right", "--scheduler", address, "--device", "cpu"]) == 2
    assert capsys.readouterr().err == f"gradoracle: the dask scheduler at {address} was lost\n"


def test_memory_is_that_of_the_cluster_and_not_of_this_machine(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small machine that sends the cases refuses none; one that the smallest dask worker cannot hold is refused."""

    def memory(*, free: bool = False) -> int:
        return 64

    memory.__module__, memory.__qualname__ = environment.__name__, "memory"  # pickled by name, as the real one
    monkeypatch.setattr(environment, "memory", memory)
    assert check(request("right", address, examples=4)).cases_run == 4
    with pytest.raises(UsageError, match="available here: 64 bytes"):
        check(dataclasses.replace(request("right", address, examples=4), scheduler=None, workers=0))
    real = dask_pool.DaskPool.memory
    monkeypatch.setattr(dask_pool.DaskPool, "memory", lambda self: (32, real(self)[1]))
    with pytest.raises(
        UsageError, match="available on the dask worker with the least memory: 32 bytes; choose smaller sizes"
    ):
        check(request("right", address, examples=4))


def test_what_still_runs_when_the_time_is_up_is_stopped(address: str) -> None:
    """Of three cases that hang, two are on the cluster of one thread; the third is not begun."""
    subjects = resolved(request("hangs", address, call_seconds=8.0))
    cases = [job for job in plan(subjects).jobs if job.case.dims["N"] > 7][:3]
    with contextlib.closing(executor_for(subjects)) as pool:
        begun = time.monotonic()
        found = list(pool.run(cases, begun + 2.0))
        assert 2.0 < time.monotonic() - begun < 6.0
    assert [(each.job, each.crash and each.crash.kind) for each in found] == [(job, "stopped") for job in cases[:2]]
