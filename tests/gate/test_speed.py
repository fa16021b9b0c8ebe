"""Times of both sides: taken in turns, of what both can do, told with their noise, and never a reason to be red."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from gate.project import KERNEL, Project

from gradoracle.comparison import Kind, Weight
from gradoracle.gate.run import Asked, gate
from gradoracle.gate.side import Task
from gradoracle.gate.speed import Pairs, Timer, Untimed, cases, measure
from gradoracle.gate.standing import OnCase, Standing
from gradoracle.gate.timing import FORWARD, VJP

CASE = "my_rmsnorm: case:1 rmsnorm cpu float32 B=2 N=8 seed=0"


class Clock:
    """Stands for a process that times: each call takes the next of some times."""

    def __init__(self, name: str, log: list[str], works: list[tuple[str, str]], times: list[float]) -> None:
        self.name, self.log, self.works, self.times = name, log, works, list(times)
        self.why: dict[str, str] = {}

    def time(self, work: tuple[str, str]) -> float:
        self.log.append(self.name)
        return self.times.pop(0)


def test_sides_take_turns_and_so_does_who_begins() -> None:
    log: list[str] = []
    both, alone = (CASE, FORWARD), (CASE, VJP)
    base = Clock("base", log, [both], [1.0, 2.0, 3.0])
    head = Clock("head", log, [both, alone], [2.0, 4.0, 6.0])
    (pairs,) = measure(base, head, rounds=3)  # type: ignore[arg-type]
    assert log == ["base", "head", "head", "base", "base", "head"]
    assert (pairs.case, pairs.what, pairs.base, pairs.head) == (CASE, FORWARD, [1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert pairs.ratios == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("base", "head", "said"),
    [
        ([1.0, 1.0, 1.0], [1.5, 1.6, 1.4], "1.5 times as long as the base (1.5 beside 1 ms; ratios 1.400 to 1.600"),
        ([2.0, 2.0, 2.0], [1.0, 1.1, 0.9], "2 times sooner (1 beside 2 ms; ratios 0.450 to 0.550"),
        ([1.0, 1.2, 1.0], [1.1, 1.1, 1.3], "as long as the base, within the noise (1.1 beside 1 ms; ratios 0.917 to"),
    ],
)  # fmt: skip
def test_a_line_tells_the_ratio_and_its_noise(base: list[float], head: list[float], said: str) -> None:
    line = Pairs(CASE, FORWARD, base, head).line()
    assert line.text.startswith(f"forward in float32: {said}") and " in 3 rounds) on case:1 rmsnorm" in line.text
    assert (line.kind, line.weight, line.kernel, line.dtype) == (Kind.SPEED, Weight.NOTE, "my_rmsnorm", "float32")


def standing(*entries: tuple[str, str, dict[str, str]]) -> Standing:
    return Standing("t", cases={line: OnCase("k", dtype, laws) for line, dtype, laws in entries})


def test_the_case_of_most_elements_on_which_both_are_right_is_timed() -> None:
    right, wrong = {"vjp_matches_the_oracle": "holds"}, {"vjp_matches_the_oracle": "violated"}
    small, large, huge = (f"k: case:1 f cpu float32 B=2 N={n} seed=0" for n in (8, 80, 800))
    sixteen = "k: case:1 f cpu bfloat16 B=2 N=8 seed=0"
    head = standing(
        (small, "float32", right), (large, "float32", right), (huge, "float32", right), (sixteen, "bfloat16", right)
    )
    base = standing(
        (small, "float32", right), (large, "float32", right), (huge, "float32", wrong), (sixteen, "bfloat16", right)
    )
    assert cases(base, head) == [large, sixteen]
    assert cases(head, base) == [large, sixteen]
    assert cases(standing(), head) == [] and cases(head, standing((small, "float32", {"other": "holds"}))) == []


@pytest.fixture
def timer(clone: Project, tmp_path: Path) -> Any:
    made: list[Timer] = []

    def make(*lines: str, target: str = KERNEL) -> Timer:
        task = Task(target, {"device": "cpu"})
        made.append(Timer(clone.folder, [str(clone.folder), *filter(None, os.sys.path)], task, lines, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.end()


def test_a_process_times_what_it_is_asked_for(timer: Any) -> None:
    own = timer(CASE)
    assert own.works == [(CASE, FORWARD), (CASE, VJP)] and own.why == {}
    assert all(own.time(work) > 0 for work in (*own.works, *own.works))


def test_what_cannot_be_timed_is_said_and_the_rest_is_timed(timer: Any, clone: Project) -> None:
    clone.edit(KERNEL, ("def my_rmsnorm(x, w):", "def my_rmsnorm(x, w):\n    assert x.shape[1] != 12, 'no twelve'"))
    other = CASE.replace("N=8", "N=12")
    own = timer(other, CASE)
    assert own.works == [(CASE, FORWARD), (CASE, VJP)] and own.why == {other: "AssertionError: no twelve"}


def test_what_a_kernel_prints_is_no_answer(timer: Any, clone: Project) -> None:
    clone.edit(KERNEL, ("def my_rmsnorm(x, w):", "def my_rmsnorm(x, w):\n    print('1.5')"))
    own = timer(CASE)
    assert len(own.works) == 2 and own.time(own.works[0]) != 1.5


def test_a_process_that_ends_says_why(timer: Any, clone: Project) -> None:
    with pytest.raises(Untimed, match="no_such_file"):
        timer(CASE, target="no_such_file.py")
    own = timer(CASE)
    own._process.kill()
    with pytest.raises(Untimed, match="exit code -9"):
        own.time(own.works[0])


def test_a_gate_tells_times_beside_all_else_and_is_green(clone: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    clone.edit(KERNEL, ("r = root(x32, 1e-6)", "r = root(x32, 1e-6) * 1"))
    monkeypatch.chdir(clone.folder)
    told: list[str] = []
    (report,) = gate(Asked("HEAD", given={"device": "cpu"}, speed=True), told.append)
    assert report.exit_code == 0 and report.comparison is not None
    lines = [line for line in report.comparison.lines if line.kind is Kind.SPEED]
    assert {line.weight for line in lines} == {Weight.NOTE}
    dtypes = {verdict.dtype for verdict in report.verdicts}
    assert sorted((line.dtype, line.text.partition(" in ")[0]) for line in lines) == sorted(
        (dtype, what) for dtype in dtypes for what in (FORWARD, VJP)
    )
    assert told[-1] == "rmsnorm: times of both, in turns"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--baseline", "b.json", "--speed"], "a baseline has no kernel to run; wanted --base REF"),
        (["--base", "HEAD", "--speed", "--device", "cpu"], "--speed needs a GPU"),
    ],
)
def test_times_that_say_nothing_are_refused(clone: Project, words: list[str], said: str) -> None:
    code, _, errors = clone.gate(*words)
    assert code == 2 and said in errors and "Traceback" not in errors
