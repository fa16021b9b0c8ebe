"""A dask cluster: the verdicts of processes here, no case lost, mistakes in one sentence, no process left behind.

A cluster that goes bad gives a sentence before the first case, and after it what is known, as interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, KilledWorker, LocalCluster
from places import TESTS
from programs import until

from gradoracle.check import execute
from gradoracle.check.execute import executor_for
from gradoracle.check.plan import plan, resolved
from gradoracle.check.run import check
from gradoracle.cli import main
from gradoracle.execution import dask_pool, environment
from gradoracle.model.derivative import Derivative
from gradoracle.model.errors import UsageError
from gradoracle.model.job import Job
from gradoracle.model.reason import Reason
from gradoracle.model.serialize import to_plain
from gradoracle.model.verdict import Report, Status
from gradoracle.project import provenance
from gradoracle.project.request import Progress, Request

FILE = TESTS / "scaled.py"
FORWARD = "forward_matches_the_oracle"

pytestmark = pytest.mark.xdist_group("cluster")  # one cluster for all of them


def started(workers: int) -> LocalCluster:
    """Dask workers of one thread on this machine, each a process with a nanny that replaces it."""
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of the scheduler of one dask worker."""
    with started(1) as local:
        yield str(local.scheduler_address)


def request(kernel: str, **fields: Any) -> Request:
    asked = Request(f"{FILE}:{kernel}", device="cpu", property=FORWARD)
    return dataclasses.replace(asked, **{"examples": 6, "shrink_seconds": 6.0, **fields})


def protected(address: str) -> list[str]:
    """The processes of gradoracle below the dask workers, once those that end have had time to."""

    def children() -> list[str]:
        below = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
        found = []
        for pid in below:
            with contextlib.suppress(OSError):  # it has just ended
                found += [pid] if "gradoracle.execution.process" in Path(f"/proc/{pid}/cmdline").read_text() else []
        return found

    with Client(address, set_as_default=False) as client:
        for _ in range(100):
            found = [pid for own in client.run(children).values() for pid in own]
            if not found:
                break
            time.sleep(0.1)
    return found


def told(report: Report) -> dict[str, Any]:
    """All that a report says, but for what it ran on and cost."""
    document = to_plain(report)
    del document["seconds"], document["environment"]
    return document


def test_a_violation_is_that_of_one_process_made_smaller_too(address: str) -> None:
    asked = request("loses_its_tail")
    there, here = check(dataclasses.replace(asked, scheduler=address)), check(dataclasses.replace(asked, workers=0))
    (verdict,) = there.verdicts
    assert told(there) == told(here) and verdict.status is Status.VIOLATED
    assert verdict.counterexample is not None and verdict.counterexample.shrunk_from
    assert not protected(address), "no process stays behind"
    assert there.environment["cluster"] == "dask, 1 worker, 1 thread" and "cluster" not in here.environment


def test_a_kernel_that_segfaults_has_crashed_as_in_one_process(address: str) -> None:
    """The dask worker lives on. Not made smaller: each try takes a process, and how many there is time for differs."""
    asked = request("segfaults", examples=4, shrink_seconds=0.1)
    there, here = check(dataclasses.replace(asked, scheduler=address)), check(dataclasses.replace(asked, workers=1))
    (verdict,) = there.verdicts
    assert told(there) == told(here) and verdict.status is Status.CRASHED
    assert verdict.counterexample is not None and verdict.cases_held > 0
    assert verdict.counterexample.crashed_in is Derivative.FORWARD
    assert "signal 11" in verdict.counterexample.message


class Killing(Progress):
    """Kills a dask worker once so many cases are done."""

    def __init__(self, address: str, after: int) -> None:
        self._address, self._after = address, after
        self.killed: list[int] = []

    def case(self, done: int, properties: int, failing: int, note: str) -> None:
        """Kill the worker, and see that it is gone."""
        if done == self._after and not self.killed:
            with Client(self._address, set_as_default=False) as client:
                pids = client.run(os.getpid)
            self.killed.append(next(iter(pids.values())))
            os.kill(self.killed[0], signal.SIGKILL)


def test_a_lost_worker_loses_no_case() -> None:
    asked = request("takes_half_a_second", examples=6)
    with started(2) as local:
        local.wait_for_workers(2, timeout=60)
        killing = Killing(str(local.scheduler_address), 2)
        there = check(dataclasses.replace(asked, scheduler=local.scheduler_address), killing)
    assert killing.killed and there.cases_run == there.cases_planned == 6
    assert there.environment["cluster"] == "dask, 2 workers, 2 threads"
    assert told(there) == told(check(dataclasses.replace(asked, workers=0)))


def test_a_case_whose_workers_are_always_lost_has_crashed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three cases the second is given up by dask, alone too; the third once, and not when it runs alone."""
    real, tries = dask_pool.DaskPool._submit, []

    class Gone:
        address = "tcp://gone:1"

    class Killed:
        def done(self) -> bool:
            return True

        def result(self, timeout: float | None) -> Any:
            raise KilledWorker("judged", Gone(), 3)  # type: ignore[arg-type]

    def submit(self: Any, job: Any, **more: Any) -> Any:
        place = cases.index(job.case) if isinstance(job, Job) else -1
        tries.append(place)
        return Killed() if place == 1 or (place == 2 and tries.count(2) == 1) else real(self, job, **more)

    asked = request("right", examples=3, shrink_seconds=0.1)
    cases = [job.case for job in plan(resolved(dataclasses.replace(asked, workers=0))).jobs]
    monkeypatch.setattr(dask_pool, "wait", lambda futures, **_: None)
    monkeypatch.setattr(dask_pool.DaskPool, "_submit", submit)
    report = check(dataclasses.replace(asked, scheduler=address))
    (verdict,) = report.verdicts
    assert report.cases_run == 3 and verdict.status is Status.CRASHED
    assert (verdict.cases_held, verdict.cases_crashed) == (2, 1)
    assert verdict.counterexample is not None and "4 dask workers in a row" in verdict.counterexample.message


def test_a_call_that_hangs_is_run_again_alone_and_then_called_so(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report = check(request("hangs", examples=5, scheduler=address, call_seconds=0.3, shrink_seconds=0.1))
    (verdict,) = report.verdicts
    assert verdict.status is Status.CRASHED and (verdict.cases_crashed, report.cases_run) == (2, 5)
    ((reason, cases),) = verdict.reasons.items()
    assert verdict.why is Reason.BARRED and cases == verdict.cases_not_checked
    assert reason.startswith("forward ") and "2 cases (time limit)" in reason


def test_the_command_line_takes_it_and_a_profile_does(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f'[tool.gradoracle.profiles.cluster]\nscheduler = "{address}"\nexamples = 4\n'
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "own.py").write_text(FILE.read_text())
    words = ["check", "own.py:right", "--property", FORWARD, "--device", "cpu", "--profile", "cluster"]
    assert main.run(words) == 0, capsys.readouterr()
    assert "checked on 4 cases" in capsys.readouterr().out


def test_other_files_there_are_said(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dask workers see a file that is not what this process has read."""
    file = tmp_path / "own.py"
    file.write_text(FILE.read_text())
    asked = request("right", scheduler=address)
    asked = dataclasses.replace(asked, target=f"{file}:right")

    real = provenance.files_of
    monkeypatch.setattr(provenance, "files_of", lambda functions, target: {**real(functions, target), "own.py": "0"})
    with pytest.raises(UsageError, match=r"dask worker tcp://\S+ cannot check \S+own.py:right: it has another own.py"):
        check(asked)


def test_a_target_that_is_not_there_is_said(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder of this process is one that the dask workers do not have."""
    (tmp_path / "own.py").write_text(FILE.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dask_pool, "os", types.SimpleNamespace(getcwd=lambda: "/nowhere", path=os.path))
    with pytest.raises(UsageError) as error:
        check(dataclasses.replace(request("right", scheduler=address), target="own.py:right"))
    assert "cannot check own.py:right: " in str(error.value) and len(str(error.value).splitlines()) == 1


def test_another_version_of_its_package_there_is_said(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "packages_of", lambda functions: {"attention": "2.5"})
    with pytest.raises(UsageError, match=r"it has attention from elsewhere; expected 2.5, as here"):
        check(request("right", scheduler=address))


def test_other_versions_there_are_said(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = provenance.version
    monkeypatch.setattr(provenance, "version", lambda name: "9.9" if name == "triton" else real(name))
    with pytest.raises(
        UsageError, match=rf"the dask worker tcp://\S+ .* has triton {real('triton')}; expected 9.9, as here"
    ):
        check(request("right", scheduler=address))
    monkeypatch.setattr(provenance, "ENGINE", ("no-such-package",))
    monkeypatch.setattr(provenance, "version", lambda name: "1.0")
    with pytest.raises(UsageError, match=r"the dask worker tcp://\S+ .* has no no-such-package; expected 1.0, as here"):
        check(request("right", scheduler=address))


def test_a_cluster_without_workers_is_said() -> None:
    with (
        started(0) as empty,
        pytest.raises(UsageError, match=r"the dask cluster at tcp://\S+ has no workers; expected at least one"),
    ):
        check(request("right", scheduler=empty.scheduler_address))


def test_no_scheduler_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(dask_pool, "CONNECT_SECONDS", 0.5)
    assert main.run(["check", f"{FILE}:right", "--scheduler", "tcp://127.0.0.1:1", "--device", "cpu"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert "no dask scheduler " in err and "--scheduler tcp://127.0.0.1:1: " in err


def test_without_the_extra_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(execute, "find_spec", lambda name: None if name == "distributed" else real(name))
    assert main.run(["check", f"{FILE}:right", "--scheduler", "tcp://host:8786", "--device", "cpu"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "distributed is not installed" in sentence and "pip install 'gradoracle[cluster]'" in sentence


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scheduler", "host:8786"], "--scheduler 'host:8786' is invalid; expected the address of a dask"),
        (["--scheduler", "tcp://h:1", "--workers", "2"], "--workers 2 cannot be combined with --scheduler"),
        (["--scheduler", "tcp://h:1", "--inputs", __file__], "--scheduler cannot be combined with --inputs"),
    ],
)
def test_what_cannot_go_with_it_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", f"{FILE}:right", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_scheduler_that_goes_away_keeps_what_is_known(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import time
        from distributed import LocalCluster

        if __name__ == "__main__":
            with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster:
                print(cluster.scheduler_address, flush=True)
                time.sleep(600)
        """
    )
    (tmp_path / "started.py").write_text(program)
    started = subprocess.Popen(
        [sys.executable, str(tmp_path / "started.py")], stdout=subprocess.PIPE, text=True, start_new_session=True
    )

    class Ending(Progress):
        def case(self, done: int, properties: int, failing: int, note: str) -> None:
            if done == 2:
                os.killpg(started.pid, signal.SIGKILL)

    try:
        assert started.stdout is not None
        address = started.stdout.readline().strip()
        begun = time.monotonic()
        report = check(request("takes_half_a_second", scheduler=address, examples=30), Ending())
    finally:
        started.kill()
        started.wait()
    assert 2 <= report.cases_run < 30 and report.exit_code == 4 and time.monotonic() - begun < 60
    assert f"the dask scheduler at {address} was lost, after {report.cases_run} of 30 cases" in report.inconclusive()


def unfit(monkeypatch: pytest.MonkeyPatch, place: int, failing: Callable[[], Any]) -> None:
    """Have a dask worker fail on the case of a place, from 0, and on all that come after it."""
    real, sent = dask_pool.DaskPool._submit, []

    def submit(self: Any, job: Any, **more: Any) -> Any:
        sent.extend([job] if isinstance(job, Job) else [])
        return real(self, job, **more) if len(sent) <= place else self._client.submit(failing, pure=False)

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
        (other_files, "it has another own.py; "),
        (unreadable, "ImportError: no module named late"),
    ],
)
def test_a_bad_worker_that_comes_late_keeps_what_is_known(
    address: str, monkeypatch: pytest.MonkeyPatch, failing: Callable[[], None], said: str
) -> None:
    unfit(monkeypatch, 3, by_value(failing))
    report = check(request("loses_its_tail", examples=8, scheduler=address))
    assert report.cases_run == 3 and report.exit_code in (1, 4)
    assert said in report.interrupted and report.interrupted.endswith(", after 3 of 8 cases")


def test_a_bad_worker_before_the_first_result_is_said(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unfit(monkeypatch, 0, by_value(other_files))
    with pytest.raises(UsageError, match=r"it has another own\.py"):
        check(request("right", scheduler=address))


@pytest.mark.parametrize("kernel", ["loses_its_tail", "raises_index_error"])
def test_a_cluster_that_is_lost_while_a_case_is_made_smaller_keeps_what_is_known(
    address: str, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    unfit(monkeypatch, 10, by_value(other_files))  # of 8 cases
    report = check(request(kernel, examples=8, scheduler=address))
    (verdict,) = report.verdicts
    assert report.cases_run == 8 and report.exit_code == 1
    assert verdict.status in (Status.VIOLATED, Status.CRASHED) and verdict.counterexample is not None
    assert "it has another own.py; " in report.interrupted and report.interrupted.endswith(", while shrinking")
    assert verdict.counterexample.shrink_note == "shrinking was interrupted"


def test_a_cluster_that_loses_all_its_workers_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = dask_pool.DaskPool._result, []

    with started(1) as local:

        def result(self: Any, job: Any, *more: Any, **named: Any) -> Any:
            asked.extend([job] if isinstance(job, Job) else [])
            if len(asked) == 3:
                local.scale(0)
                while self._client.nthreads():
                    time.sleep(0.05)
            return real(self, job, *more, **named)

        monkeypatch.setattr(dask_pool, "IDLE_SECONDS", 1.0)
        monkeypatch.setattr(dask_pool.DaskPool, "_result", result)
        report = check(request("right", examples=8, scheduler=local.scheduler_address))
    assert report.exit_code == 4 and 2 <= report.cases_run < 8
    assert report.interrupted.endswith(f" no worker for 1 s, after {report.cases_run} of 8 cases")


def test_a_cluster_that_is_lost_while_it_is_looked_at_is_said(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise OSError("comm closed")

    monkeypatch.setattr(dask_pool.Client, "run", lost)
    assert main.run(["check", f"{FILE}:right", "--scheduler", address, "--device", "cpu"]) == 2
    assert capsys.readouterr().err.endswith(f" {address} was lost\n")


def test_memory_is_that_of_the_cluster_and_not_of_this_machine(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small machine that sends the cases refuses none; one that the smallest dask worker cannot hold is refused."""

    def memory(*, free: bool = False) -> int:
        return 64

    memory.__module__, memory.__qualname__ = environment.__name__, "memory"  # pickled by name, as the real one
    monkeypatch.setattr(environment, "memory", memory)
    assert check(request("right", examples=4, scheduler=address)).cases_run == 4
    with pytest.raises(UsageError, match="available here: 64 bytes"):
        check(request("right", examples=4, workers=0))
    real = dask_pool.DaskPool.memory
    monkeypatch.setattr(dask_pool.DaskPool, "memory", lambda self: (32, real(self)[1]))
    with pytest.raises(
        UsageError, match="available on the dask worker with the least memory: 32 bytes; choose smaller sizes"
    ):
        check(request("right", examples=4, scheduler=address))


def test_what_still_runs_when_the_time_is_up_is_stopped(address: str) -> None:
    """Of three cases that hang, two are on the cluster of one thread; the third is not begun."""
    subjects = resolved(request("hangs", examples=8, scheduler=address, call_seconds=8.0))
    cases = [job for job in plan(subjects).jobs if job.case.dims["N"] > 7][:3]
    with contextlib.closing(executor_for(subjects)) as pool:
        begun = time.monotonic()
        found = list(pool.run(cases, begun + 2.0))
        assert 2.0 < time.monotonic() - begun < 6.0
    assert [(each.job, each.crash and each.crash.kind) for each in found] == [(job, "stopped") for job in cases[:2]]


def test_processes_of_a_client_that_was_killed_end(tmp_path: Path) -> None:
    target = f"{FILE}:takes_half_a_second"

    def kept(seconds: float) -> None:
        dask_pool.KEPT_SECONDS = seconds

    def held() -> int:
        return dask_pool._process.cache_info().currsize

    with started(1) as local, Client(local) as client:
        client.run(kept, 1.5)
        words = ["check", target, "--device", "cpu", "--property", FORWARD, "--scheduler", local.scheduler_address]
        program = f"import sys; from gradoracle.cli.main import run; sys.exit(run({words!r}))"
        sender = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, cwd=tmp_path)
        assert until(lambda: processes(tmp_path) == 1, 60)
        time.sleep(2.0)
        os.kill(sender.pid, signal.SIGKILL)
        sender.wait()
        assert until(lambda: processes(tmp_path) == 0, 15)
        assert set(client.run(held).values()) == {0}


def processes(folder: Path) -> int:
    """The protected processes that work in a folder: that of the client, also below a dask worker."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_protected = (process / "comm").read_text().strip() == "gradoracle-work"
            found += is_protected and (process / "cwd").resolve() == folder
    return found
