"""Times of both sides: taken in turns, of what both can do, reported with their noise, and never a regression."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from gate.project import KERNEL, Project

from gradoracle.cases.saved_tensors import sample_of
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.gate import speed
from gradoracle.gate.run import Asked, gate
from gradoracle.gate.side import Task
from gradoracle.gate.speed import Rounds, Timer, Untimed, measure, untimed
from gradoracle.gate.timing import FORWARD, VJP, Work, calls, problems
from gradoracle.model.case import Case, require_fit
from gradoracle.model.comparison import Kind, Weight
from gradoracle.model.kernel import Kernel
from gradoracle.project.request import Request
from gradoracle.project.target import resolve

NO_BACKWARD = "RuntimeError: no output requires a gradient, so there is no backward to time"
CASE = "case:1 rmsnorm cpu float32 B=2 N=8 seed=0"
BOTH, ALONE = ("my_rmsnorm", CASE, FORWARD), ("my_rmsnorm", CASE, VJP)


class Clock:
    """Stands for a process that times: each call takes the next of some times."""

    def __init__(self, name: str, log: list[str], works: list[Work], times: list[float]) -> None:
        self.name, self.log, self.works, self.times = name, log, works, list(times)
        self.why: dict[Work, str] = {}

    def time(self, work: Work) -> float:
        self.log.append(self.name)
        return self.times.pop(0)


def test_sides_take_turns_and_so_does_who_begins() -> None:
    log: list[str] = []
    base = Clock("base", log, [BOTH], [1.0, 2.0, 3.0, 4.0])
    twin = Clock("twin", log, [BOTH], [1.5, 2.5, 3.5, 4.5])
    head = Clock("head", log, [BOTH, ALONE], [2.0, 4.0, 6.0, 8.0])
    (found,) = measure(base, twin, head, rounds=4)  # type: ignore[arg-type]
    assert log == ["base", "head", "twin", "head", "twin", "base", "twin", "base", "head", "base", "head", "twin"]
    assert found.work == BOTH
    assert (found.base, found.twin) == ([1.0, 2.0, 3.0, 4.0], [1.5, 2.5, 3.5, 4.5])
    assert found.head == [2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize(
    ("twin", "head", "said"),
    [
        ([1.0, 1.01], [1.5, 1.7], "60 % more time than the base (1.6 ms, the base 1 ms; ratios 1.500 to 1.700, base"),
        ([1.0, 0.99], [0.5, 0.52], "49 % less time than the base (0.51 ms, the base 1 ms; ratios 0.500 to 0.520"),
        ([1.0, 1.0], [1.002, 1.002], "0.2 % more time than the base ("),
        ([1.0, 1.0], [4.0, 5.0], "4.5 times the base's time ("),
        ([1.0, 1.6], [1.5, 1.7], "no measurable difference from the base (1.6 ms, the base 1 ms; ratios 1.500 to "
         "1.700, base against itself 1.000 to 1.600, 2 rounds)"),
        ([1.0, 1.0], [0.9, 1.7], "no measurable difference from the base ("),
        ([0.9, 1.0], [0.91, 0.91], "no measurable difference from the base ("),
        ([0.0, 1.0], [1.0, 1.0], "no measurable difference from the base ("),
    ],
)  # fmt: skip
def test_a_line_tells_the_ratio_unless_identical_code_shows_it_too(
    twin: list[float], head: list[float], said: str
) -> None:
    line = Rounds(BOTH, [1.0, 1.0], twin, head).line()
    assert line.text.startswith(f"forward in float32: {said}") and line.text.endswith(f" on {CASE}")
    assert (line.kind, line.weight, line.kernel, line.dtype) == (Kind.SPEED, Weight.NOTE, "my_rmsnorm", "float32")


def test_no_time_at_all_is_no_division() -> None:
    assert "nan" not in Rounds(BOTH, [0.0, 0.0], [0.0, 0.0], [0.0, 1.0]).line().text


def test_what_a_side_fails_at_or_has_alone_is_reported() -> None:
    more = ("my_rmsnorm", CASE, "more")
    base, head = Clock("base", [], [BOTH, ALONE], []), Clock("head", [], [BOTH, more], [])
    head.why = {ALONE: "RuntimeError: no"}
    assert list(untimed(base, head)) == [  # type: ignore[arg-type]
        f"{VJP} on my_rmsnorm: {CASE} fails in the change: RuntimeError: no",
        f"more on my_rmsnorm: {CASE} exists only in the change",
    ]


@pytest.fixture
def timer(clone: Project, tmp_path: Path) -> Any:
    made: list[Timer] = []

    def make(*timed: str, target: str = KERNEL, dtype: str = "float32") -> Timer:
        task = Task(target, {"device": "cpu", "dtype": dtype, **({"timed": list(timed)} if timed else {})})
        made.append(Timer(clone.folder, [str(clone.folder), *filter(None, sys.path)], task, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.close()


def case(b: int, n: int, dtype: str = "float32") -> tuple[str, str]:
    return "my_rmsnorm", f"case:1 rmsnorm cpu {dtype} B={b} N={n} seed=0"


def test_a_process_times_what_it_is_asked_for(timer: Any) -> None:
    own = timer("B=2 N=8", "N=12", dtype="float32,bfloat16")
    problems = [case(2, 8), case(2, 8, "bfloat16"), case(128, 12), case(128, 12, "bfloat16")]
    assert own.works == [(*each, what) for each in problems for what in (FORWARD, VJP)] and own.why == {}
    assert all(own.time(work) > 0 for work in (*own.works, *own.works))


def test_where_nothing_is_asked_for_dims_are_as_large_as_they_usually_are(timer: Any) -> None:
    assert [(kernel, line) for kernel, line, _ in timer().works] == [case(128, 64)] * 2


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("sdpa", {"B": 3, "H": 4, "T": 4096, "M": 320, "D": 128, "Dv": 128}),
        ("lse", {"B": 3, "H": 4, "G": 4, "T": 4096, "M": 320, "D": 256}),
        ("lightning", {"B": 3, "H": 4, "N": 4096, "D": 128, "Dv": 128}),
        ("semicrf", {"B": 3, "T": 4096, "C": 4, "K": 12}),
    ],
)
def test_plain_problems_of_the_shipped_families_fit(name: str, dims: dict[str, int]) -> None:
    target = resolve(name)
    (kernel,) = target.kernels
    found = list(problems(target.family, kernel, Request(name, dtypes=("float32",))))
    assert [dict(each.dims) for each in found] == [dims] and {each.blocks for each in found} == {""}
    require_fit(found[0], target.family.signature)
    small = list(problems(target.family, kernel, Request(name, dtypes=("float32",), timed=({"B": 1},))))
    assert small[0].dims["B"] == 1 and {**small[0].dims, "B": 3} == dims


def test_explicit_and_automatic_backwards_are_timed_with_their_forward() -> None:
    target = resolve("sdpa")
    asked: list[str] = []

    def explicit(inputs: Any, cotangents: Any, options: Any, blocks: Any) -> Any:
        asked.append("vjp")
        return tuple(inputs.values())

    def forward(q: Any, k: Any, v: Any, **options: Any) -> Any:
        asked.append("forward")
        return (q @ k.mT).softmax(-1) @ v

    sample = sample_of(Case("sdpa", {"B": 1, "H": 1, "T": 4, "M": 3, "D": 2, "Dv": 2}), target.family, None, "cpu")
    for vjp, log in ((None, ["forward"]), (explicit, ["forward", "vjp"])):
        made = calls(KernelRunner(target.family, Kernel("k", "sdpa", forward, vjp=vjp)), sample)
        assert list(made) == [FORWARD, VJP]
        asked.clear()
        made[VJP]()
        assert asked == log


def test_what_cannot_be_timed_is_said_and_the_rest_is_timed(timer: Any, clone: Project) -> None:
    clone.edit(KERNEL, ("def my_rmsnorm(x, w):", "def my_rmsnorm(x, w):\n    assert x.shape[1] != 12, 'no twelve'"))
    own = timer("B=2 N=12", "B=2 N=8")
    assert own.works == [(*case(2, 8), FORWARD), (*case(2, 8), VJP)]
    assert own.why == {(*case(2, 12), what): "AssertionError: no twelve" for what in (FORWARD, VJP)}


def test_a_kernel_without_a_gradient_has_no_backward_to_time(timer: Any, clone: Project) -> None:
    clone.edit(KERNEL, ("return _Norm.apply(x, w)", "return _Norm.apply(x, w).detach()"))
    own = timer("B=2 N=8")
    assert own.works == [(*case(2, 8), FORWARD)]
    assert own.why == {
        (*case(2, 8), VJP): "RuntimeError: no output requires a gradient, so there is no backward to time"
    }


def test_a_kernel_that_hangs_is_given_up(timer: Any, clone: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = "CALLS.append(1)\n    time.sleep(600 if len(CALLS) > 2 else 0)\n    return _Norm.apply"
    clone.edit(KERNEL, ("return _Norm.apply", hangs), ("WIDEST = 64", "import time\n\nCALLS = []\nWIDEST = 64"))
    own = timer("B=2 N=8")
    monkeypatch.setattr(speed, "SECONDS", 1.0)
    with pytest.raises(Untimed, match=r"forward on my_rmsnorm: case:1 .* took longer than 1 s"):
        own.time(own.works[0])


def test_a_process_ends_with_its_gate_whatever_it_does(timer: Any, clone: Project) -> None:
    hangs = "CALLS.append(1)\n    time.sleep(600 if len(CALLS) > 2 else 0)\n    return _Norm.apply"
    clone.edit(KERNEL, ("return _Norm.apply", hangs), ("WIDEST = 64", "import time\n\nCALLS = []\nWIDEST = 64"))
    own = timer("B=2 N=8")
    assert own.works and own._process.stdin is not None
    own._process.stdin.write("0\n")
    own._process.stdin.close()
    assert own._process.wait(timeout=30) == 1


def test_what_a_kernel_prints_is_no_answer(timer: Any, clone: Project) -> None:
    clone.edit(KERNEL, ("def my_rmsnorm(x, w):", "def my_rmsnorm(x, w):\n    print('1.5')"))
    own = timer()
    assert len(own.works) == 2 and own.time(own.works[0]) != 1.5


def test_a_process_that_ends_says_why(timer: Any) -> None:
    with pytest.raises(Untimed, match="no_such_file"):
        list(timer(target="no_such_file.py").works)
    with pytest.raises(Untimed, match=r"^--timed names Q; rmsnorm has the dims B, N$"):
        list(timer("B=2 Q=3").why)
    own = timer()
    assert own.works
    own._process.kill()
    with pytest.raises(Untimed, match="exit code -9"):
        own.time(own.works[0])


def test_a_gate_reports_times_as_notes_and_passes(clone: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "DEVICES", ("cpu",))
    clone.edit(KERNEL, ("r = root(x32, 1e-6)", "r = root(x32, 1e-6) * 1"))
    monkeypatch.chdir(clone.folder)
    told: list[str] = []
    (report,) = gate(Asked("HEAD", given={"device": "cpu", "timed": ["B=2 N=8"]}, speed=True), told.append)
    assert report.exit_code == 0 and report.comparison is not None
    lines = [line for line in report.comparison.lines if line.kind is Kind.SPEED]
    assert {line.weight for line in lines} == {Weight.NOTE}
    dtypes = {verdict.dtype for verdict in report.verdicts}
    assert sorted((line.dtype, line.text.partition(" in ")[0]) for line in lines) == sorted(
        (dtype, what) for dtype in dtypes for what in (FORWARD, VJP)
    )
    assert told[-1] == "rmsnorm: timing both sides alternately"


def test_what_one_side_cannot_do_is_a_note(clone: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "DEVICES", ("cpu",))
    clone.edit(KERNEL, ("def my_rmsnorm(x, w):", "def my_rmsnorm(x, w):\n    assert x.shape[0] != 999"))
    monkeypatch.chdir(clone.folder)
    (report,) = gate(Asked("HEAD", given={"device": "cpu", "timed": ["B=999"]}, speed=True), lambda text: None)
    assert report.exit_code == 0 and report.comparison is not None
    lines = [line.text for line in report.comparison.lines]
    assert len(lines) == 2 * len({verdict.dtype for verdict in report.verdicts})
    told = r"rmsnorm is not timed: forward.* on my_rmsnorm: case:1 .* B=999 .* fails in the change: AssertionError"
    assert all(re.fullmatch(told, text) for text in lines)


def test_the_interpreter_is_not_timed(clone: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    clone.edit(KERNEL, ("r = root(x32, 1e-6)", "r = root(x32, 1e-6) * 1"))
    monkeypatch.chdir(clone.folder)
    (report,) = gate(Asked("HEAD", given={"device": "cpu"}, speed=True), lambda text: None)
    assert report.comparison is not None and report.exit_code == 0
    assert [line.text for line in report.comparison.lines] == [
        "rmsnorm is not timed: times in the interpreter say nothing about a kernel"
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--baseline", "b.json", "--speed"], "a baseline file holds none; expected --base REF"),
        (["--base", "HEAD", "--speed", "--device", "cpu"], "--speed needs a GPU"),
        (["--base", "HEAD", "--timed", "T=4"], "--timed has no effect without --speed; expected both"),
        (["--base", "HEAD", "--timed", "T:4"], "--timed 'T:4': 'T:4' is invalid; expected sizes, such as B=4"),
        (["--base", "HEAD", "--timed", "T=0"], "--timed 'T=0': 'T=0' is invalid"),
    ],
)
def test_times_that_say_nothing_are_refused(clone: Project, words: list[str], said: str) -> None:
    code, _, errors = clone.gate(*words)
    assert code == 2 and said in errors and "Traceback" not in errors
