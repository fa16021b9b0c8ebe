"""Schedule: nothing is compiled twice, cases share what is compiled, the first result is early; runs that are cut."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gradoracle.check.barring import Barring
from gradoracle.check.execute import Execution
from gradoracle.check.plan import plan, resolved
from gradoracle.check.schedule import Schedule
from gradoracle.execution.executor import LATER, Crash, Result
from gradoracle.model.case import Case
from gradoracle.model.job import CaseResult, Compilation, Job, Rehearsal
from gradoracle.project.request import Request

WORKERS = 4
SECONDS = {Rehearsal: 1.0, Job: 2.0}  # of the clock below; a compilation takes as many as its specialisation says


def job(place: int, kernel: str = "shipped") -> Job:
    return Job(kernel, Case("toy", {"N": place + 1}, "float32", {}, {}, "", place), ("property",))


def compilation(name: str, seconds: int = 5) -> Compilation:
    return Compilation("module", name, str(seconds))


class Machine:
    """Processes by a clock of its own; it compiles by saying so.

    Attributes:
        begun: what was begun, and when.
        ended: likewise.
    """

    in_order, shares_compilations = False, True

    def __init__(self, needs: Mapping[int, list[Compilation]], failing: Iterable[Any] = ()) -> None:
        self._needs, self._failing = needs, list(failing)
        self.begun: list[tuple[float, Any]] = []
        self.ended: list[tuple[float, Any]] = []
        self.now = 0.0

    def run(self, jobs: Iterable[Any], until: float = float("inf")) -> Iterator[Result]:
        source, running = iter(jobs), list[tuple[float, int, Any]]()
        while True:
            while len(running) < WORKERS and (found := next(source, None)) not in (None, LATER):
                seconds = float(found.specialisation) if isinstance(found, Compilation) else SECONDS[type(found)]
                self.begun.append((self.now, found))
                running.append((self.now + seconds, len(self.begun), found))
            if not running:
                assert found is None, "it waits for nothing"
                return
            first = min(running)
            running.remove(first)
            self.now, _, done = first
            self.ended.append((self.now, done))
            if done in self._failing:
                yield Result(done, crash=Crash("a call", "killed", "signal"))
            elif isinstance(done, Rehearsal):
                yield Result(done, tuple(self._needs[done.case.seed]))
            else:
                yield Result(done, 1.0 if isinstance(done, Compilation) else CaseResult(done.kernel, done.case, ()))

    def over(self, schedule: Schedule) -> list[Job]:
        """The jobs of a schedule in the order in which they begin."""
        for result in self.run(schedule):
            schedule.took(result)
        return [what for _, what in self.begun if isinstance(what, Job)]


JOBS = [job(place) for place in range(12)]
SHARED = {place: [compilation(f"k{place % 3}"), compilation("all", 9)] for place in range(12)}


def test_nothing_is_compiled_twice_and_every_case_runs_once_after_what_it_needs() -> None:
    machine = Machine(SHARED)
    ran = machine.over(Schedule(JOBS, lambda _: True))
    compiled = [what for _, what in machine.begun if isinstance(what, Compilation)]
    assert sorted(each.function for each in compiled) == ["all", "k0", "k1", "k2"]
    assert sorted(ran, key=JOBS.index) == JOBS
    there = {what: at for at, what in machine.ended if isinstance(what, Compilation)}
    for at, what in machine.begun:
        if isinstance(what, Job):
            assert all(there[each] <= at for each in SHARED[what.case.seed])


def test_the_first_result_does_not_wait_for_the_compilations_of_others() -> None:
    needs = {place: [compilation(f"{place} {name}", 4) for name in "abcd"] for place in range(12)}
    machine = Machine(needs)
    machine.over(Schedule(JOBS, lambda _: True))
    first = next(at for at, what in machine.ended if isinstance(what, Job))
    assert first <= 1 + 1 + 4 + 2  # a rehearsal, another one, four compilations side by side, the case
    assert machine.now < 1.2 * (12 * (4 * 4 + 1 + 2)) / WORKERS  # and no process waits while there is work


def test_what_is_not_rehearsed_runs_at_once_in_the_order_of_the_plan() -> None:
    machine = Machine({})
    assert machine.over(Schedule(JOBS, lambda _: False)) == JOBS
    assert len(machine.begun) == len(JOBS)


@pytest.mark.parametrize("what", [Rehearsal("shipped", JOBS[0].case, ("property",)), compilation("all", 9)])
def test_a_rehearsal_or_compilation_that_fails_stops_no_case(what: Any) -> None:
    machine = Machine(SHARED, failing=[what])
    assert sorted(machine.over(Schedule(JOBS, lambda _: True)), key=JOBS.index) == JOBS


def test_cases_may_wait_for_what_another_process_compiles() -> None:
    one = compilation("slow", 30)
    schedule = Schedule(JOBS[:3], lambda _: True)
    source = iter(schedule)
    rehearsals = [next(source) for _ in range(3)]
    assert next(source) is LATER
    assert all(schedule.took(Result(each, (one,))) for each in rehearsals)
    assert next(source) == one and next(source) is LATER
    assert schedule.took(Result(one, 30.0))
    assert [next(source) for _ in range(3)] == JOBS[:3] and next(source, None) is None
    assert not schedule.took(Result(JOBS[0], CaseResult("shipped", JOBS[0].case, ())))


# ---- in a run ----


class Stopped(Machine):
    """Four processes that are stopped while they compile one kernel for different calls, and one compiles ahead."""

    def run(self, jobs: Iterable[Any], until: float = float("inf")) -> Iterator[Result]:
        given = [each for each, _ in zip(jobs, range(WORKERS), strict=False)]
        for call, (seconds, each) in zip(("forward", "vjp", "blocks wide: vjp", "hvp"), enumerate(given), strict=True):
            phase = f"{call}, compiling key_kernel"
            crash = Crash(phase, "was stopped", "stopped", seconds=3.0 + seconds)
            yield Result(each, crash=crash, seconds=130.0)
        yield Result(compilation("query_kernel"), crash=Crash("compiling query_kernel", "", "stopped"), seconds=2.0)
        yield Result(Rehearsal("sdpa", JOBS[0].case, ()), crash=Crash("a rehearsal", "", "stopped"), seconds=2.0)


def executed(machine: Machine, device: str = "cuda", **fields: Any) -> Execution:
    planned = plan(resolved(Request("sdpa", device="cpu", workers=0, examples=8)))
    planned = replace(planned, subjects=replace(planned.subjects, device=device), trial=None)
    execution = Execution(planned, machine, Barring(machine), time.monotonic(), **fields)  # type: ignore[arg-type]
    execution.run(planned.jobs, lambda result: "")
    return execution


def test_a_compilation_that_is_interrupted_is_told_once_with_its_own_seconds() -> None:
    execution = executed(Stopped({}), device="cpu")
    assert execution.stopped == {"compiling key_kernel": 6.0, "compiling query_kernel": 2.0}


class Kept(Machine):
    """Every case needs the same kernel."""

    def __init__(self) -> None:
        super().__init__({})

    def run(self, jobs: Iterable[Any], until: float = float("inf")) -> Iterator[Result]:
        for result in super().run(jobs, until):
            own = isinstance(result.job, Rehearsal)
            yield replace(result, value=(compilation("all"),)) if own else result


def test_a_run_on_a_gpu_rehearses_shipped_kernels_and_adds_up_what_is_compiled() -> None:
    told: list[tuple[float, float]] = []
    machine = Kept()
    machine._needs = {seed: [] for seed in range(10_000)}
    execution = executed(machine, compiled=lambda *seconds: told.append(seconds))
    assert execution.begun == 8 and told == [(1.0, 1.0)]
    assert sum(isinstance(what, Rehearsal) for _, what in machine.begun) == 8
    plain = Kept()
    assert executed(plain, device="cpu").begun == 8  # the interpreter compiles nothing
    assert all(isinstance(what, Job) for _, what in plain.begun)


def test_nothing_is_compiled_for_cases_that_will_not_begin() -> None:
    machine = Kept()
    assert executed(machine, until=time.monotonic() - 1.0).begun == 0 and not machine.begun
