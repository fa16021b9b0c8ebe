"""LocalPool: whatever a kernel does to its process is a result, and the next job runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from places import TESTS

from gradoracle.execution import child as child_module
from gradoracle.execution import process
from gradoracle.execution.executor import LATER, Result, StartupError
from gradoracle.execution.in_process import InProcess
from gradoracle.execution.local_pool import LocalPool

HERE = str(TESTS)
Pool = Callable[..., LocalPool]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.syspath_prepend(HERE)
    opened: list[LocalPool] = []

    def build(count: int = 1, setup: object = None, **more: object) -> LocalPool:
        opened.append(LocalPool("execution.workload:start", setup, count=count, **more))  # type: ignore[arg-type]
        return opened[-1]

    yield build
    for workers in opened:
        workers.close()


def one(workers: LocalPool, kind: str, argument: object = None) -> Result:
    (result,) = workers.run([(kind, argument)])
    return result


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie that nobody has waited for counts)."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def test_a_limit_of_memory_makes_an_allocation_fail_and_no_more(pool: Pool) -> None:
    workers = pool(memory=1 << 31)
    beyond = one(workers, "allocate", 1 << 31)
    assert beyond.error.strip().endswith("MemoryError") and beyond.crash is None
    assert one(workers, "allocate", 1 << 20).value == 1 << 20
    assert one(pool(), "allocate", 1 << 31).value == 1 << 31


def test_an_abort_for_lack_of_memory_is_no_fault_of_the_kernel(pool: Pool) -> None:
    crash = one(pool(), "aborts for lack of memory").crash
    assert crash is not None and crash.kind == "memory" and "signal 6" in crash.how


@pytest.mark.parametrize(
    ("kind", "how", "cause"),
    [
        ("segfault", "killed by signal 11 (segmentation fault)", "signal"),
        ("_exit", "exited with code 3", "exit"),
        ("sys.exit", "exited with code 3", "exit"),
        ("killed", "killed by the system (signal 9: most likely out of memory)", "memory"),
        ("raise in kernel", "raised ValueError: T must be a multiple of 16, got 7", "exception"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_death_inside_a_kernel_is_a_crash_and_the_next_job_runs(
    pool: Pool, kind: str, how: str, cause: str, count: int
) -> None:
    results = list(pool(count).run([("echo", 1), (kind, None), ("echo", 2), ("echo", 3)]))
    crashes = [result for result in results if result.crash]
    assert [(c.job, c.crash.phase, c.crash.how, c.crash.kind) for c in crashes if c.crash] == [
        ((kind, None), "vjp", how, cause)
    ]
    assert sorted(result.value for result in results if not result.crash) == [1, 2, 3]
    assert not any(result.error for result in results)


@pytest.mark.parametrize("kind", ["hang", "hang with the lock", "close everything"])
def test_a_hang_ends_at_the_limit_that_its_phase_announced(pool: Pool, kind: str) -> None:
    workers = pool()
    hung, after = workers.run([(kind, 0.3), ("echo", "after")])
    assert hung.crash is not None and hung.crash.phase == "vjp"
    if kind != "close everything":
        assert hung.crash.kind == "time limit" and hung.crash.how.endswith(" 0.3 s")
    assert after.value == "after"


def test_time_outside_of_a_phase_is_not_limited(pool: Pool) -> None:
    slow, steps = pool().run([("sleep", 0.6), ("steps", None)])
    assert (slow.value, steps.value) == (0.6, "stepped")
    assert slow.seconds >= 0.6


def test_a_rerun_alone_waits_for_the_others(pool: Pool) -> None:
    workers = pool(2)
    results = workers.run([("hang", 0.2), ("sleep", 0.8), ("echo", "last")])
    first = next(results)
    assert first.crash is not None and first.crash.kind == "time limit"
    again = workers.run_alone(first.job)
    assert again.crash is not None and again.crash.how.endswith(" 0.2 s")
    assert sorted(str(result.value) for result in results) == ["0.8", "last"]


def test_a_segfault_leaves_its_python_stack_in_the_output(pool: Pool) -> None:
    crash = one(pool(), "segfault").crash
    assert crash is not None and "Segmentation fault" in crash.output and "workload.py" in crash.output


def test_what_a_child_prints_stays_off_the_terminal_and_in_the_crash(
    pool: Pool, capfd: pytest.CaptureFixture[str]
) -> None:
    crash = one(pool(), "print").crash
    assert crash is not None
    assert crash.output.splitlines() == ["written to descriptor 1", "written to descriptor 2", "printed"]
    assert capfd.readouterr() == ("", "")


def test_what_was_printed_by_earlier_jobs_is_left_out(pool: Pool) -> None:
    _, last = pool().run([("say", "before"), ("print", None)])
    assert last.crash is not None
    assert last.crash.output.splitlines() == ["written to descriptor 1", "written to descriptor 2", "printed"]


def test_a_fault_outside_of_a_kernel_comes_back_as_a_traceback(pool: Pool) -> None:
    fault, leaving, after = pool().run([("fault", None), ("exit outside", None), ("jobs so far", None)])
    assert fault.crash is None and "ZeroDivisionError: a fault" in fault.error
    assert leaving.crash is None and "SystemExit: 4" in leaving.error
    assert after.value == 1  # in a fresh process


def test_an_exception_inside_a_kernel_does_not_cost_the_process(pool: Pool) -> None:
    before, _, after = pool().run([("pid", None), ("raise in kernel", None), ("pid", None)])
    assert before.value == after.value


def test_big_results_and_jobs_come_through_whole(pool: Pool) -> None:
    size = 1 << 24
    big, echoed = pool().run([("big", size), ("echo", b"y" * size)])
    assert big.value == b"x" * size and echoed.value == b"y" * size


def test_values_that_cannot_be_pickled_are_errors_on_both_ways(pool: Pool) -> None:
    out, back, after = pool().run([("echo", lambda: 1), ("unpicklable", 1), ("echo", "fine")])
    assert "pickle" in out.error and "cannot be sent" in back.error
    assert after.value == "fine"


def test_many_jobs_are_pulled_only_as_processes_become_free(pool: Pool) -> None:
    pulled = 0

    def jobs() -> Iterator[tuple[str, int]]:
        nonlocal pulled
        for number in range(300):
            pulled += 1
            yield ("echo", number)

    seen, ahead = [], 0
    for result in pool(2).run(jobs()):
        seen.append(result.value)
        ahead = max(ahead, pulled - len(seen))
    assert sorted(seen) == list(range(300))
    assert ahead <= 4  # two running, and at most two results that wait to be read


def test_results_come_in_order_of_completion(pool: Pool) -> None:
    workers = pool(2)
    assert all(result.value is None for result in workers.run([("setup", None)] * 4))  # both have started
    assert [result.value for result in workers.run([("sleep", 1.0), ("echo", "quick")])] == ["quick", 1.0]


def test_a_process_that_dies_while_idle_costs_no_job(pool: Pool) -> None:
    workers = pool()
    pid = one(workers, "idle death").value
    time.sleep(0.5)
    assert one(workers, "echo", "alive").value == "alive"
    assert gone(pid)


def test_the_environment_is_set_before_anything_is_imported(pool: Pool) -> None:
    workers = pool(env={"GRADORACLE_TEST": "1"})
    assert one(workers, "environment", "GRADORACLE_TEST").value == "1"
    assert "GRADORACLE_TEST" not in os.environ


@pytest.mark.parametrize(
    ("setup", "says"), [("raise", "RuntimeError: no such accelerator"), ("die", "exited with code 9")]
)
def test_children_that_cannot_start_are_one_error_and_no_endless_loop(pool: Pool, setup: str, says: str) -> None:
    with pytest.raises(StartupError, match=says):
        one(pool(2, setup), "echo")


def test_leaving_a_run_early_kills_what_still_runs(pool: Pool) -> None:
    workers = pool(2)
    run = workers.run([("pid", None), ("hang", 1000), ("echo", "never asked for")])
    assert isinstance(next(run).value, int)
    run.close()  # type: ignore[attr-defined]
    assert one(workers, "echo", "next run").value == "next run"


def test_two_runs_at_once_are_refused(pool: Pool) -> None:
    workers = pool()
    run = workers.run([("echo", 1), ("echo", 2)])
    next(run)
    with pytest.raises(RuntimeError, match="middle of another run"):
        next(workers.run([("echo", 3)]))


def test_what_a_dead_kernel_had_started_dies_with_it(pool: Pool, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    assert one(pool(), "grandchild", str(marker)).crash is not None
    assert gone(int(marker.read_text()))


def test_a_death_is_seen_though_a_fork_holds_the_socket_open(pool: Pool) -> None:
    died, after = pool().run([("fork", None), ("echo", "after")])
    assert died.crash is not None and died.crash.how == "exited with code 7" and after.value == "after"


def test_a_kernel_that_prints_without_end_fills_no_disk(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    cut = process.Process.cut_output

    def size(child: process.Process) -> int:
        return os.fstat(child._output.fileno()).st_blocks * 512

    def measured(child: process.Process) -> None:
        before = size(child)
        cut(child)
        sizes.append((before, size(child)))

    monkeypatch.setattr(child_module, "_OUTPUT_LIMIT", 1 << 20)
    monkeypatch.setattr(process.Process, "cut_output", measured)
    crash = one(pool(), "print without end").crash
    assert crash is not None and crash.output.endswith("the end") and len(crash.output) <= 4000
    full = [(before, after) for before, after in sizes if before > 1 << 20]
    assert full and sum(after for _, after in full) < sum(before for before, _ in full) / 2  # it prints meanwhile


@pytest.mark.parametrize("kind", ["echo", "fault", "raise in kernel", "sys.exit"])
def test_without_processes_a_job_says_the_same(pool: Pool, kind: str) -> None:
    apart, here = one(pool(1), kind, "x"), InProcess("execution.workload:start", None).run_alone((kind, "x"))
    assert (here.value, here.crash) == (apart.value, apart.crash)
    assert bool(here.error) == bool(apart.error)


PARENT = """
import sys
sys.path.insert(0, {here!r})
from gradoracle.execution.local_pool import LocalPool
workers = LocalPool("execution.workload:start", None, count=2)
try:
    for result in workers.run([("pid", None), ("pid", None), ("hang with the lock", 1000), ("hang", 1000)]):
        print(result.value, flush=True)
except KeyboardInterrupt:
    workers.close()
    print("closed", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_no_child_outlives_its_parent(how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(here=HERE)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline()) for _ in range(2)]
    time.sleep(0.3)
    os.killpg(parent.pid, how) if how is signal.SIGINT else parent.send_signal(how)
    rest = parent.stdout.read()
    parent.wait(20)
    parent.stdout.close()
    assert all(gone(pid) for pid in pids)
    if how is signal.SIGINT:
        assert rest == "closed\n" and parent.returncode == 0


def test_what_replaces_a_child_has_its_environment(pool: Pool) -> None:
    workers = pool(3, env=[{"GPU": "0"}, {"GPU": "1"}])

    def gpus() -> list[str]:
        for _ in range(200):
            found = dict(result.value for result in workers.run([("pid and environment", "GPU")] * 3))
            if len(found) == 3:
                return sorted(found.values())
            time.sleep(0.05)
        raise AssertionError("the three processes are not there again")

    assert gpus() == ["0", "0", "1"]
    for kind in ("segfault", "_exit", "segfault", "_exit"):
        assert one(workers, kind).crash is not None
        assert gpus() == ["0", "0", "1"]
    assert sum(result.crash is not None for result in workers.run([("segfault", None)] * 3)) == 3
    assert gpus() == ["0", "0", "1"]


def test_a_source_that_has_no_job_now_is_asked_again_once_one_has_ended(pool: Pool) -> None:
    workers, ended = pool(count=3), list[object]()

    def jobs() -> Iterator[object]:
        yield "sleep", 0.2
        while not ended:
            yield LATER
        yield "echo", len(ended)

    for result in workers.run(jobs()):
        ended.append(result.value)
    assert ended == [0.2, 1] and workers.shares_compilations and not pool(count=1).shares_compilations
