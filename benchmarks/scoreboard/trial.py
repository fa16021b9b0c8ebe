"""Trial of one wrong kernel by all rules: on each case by those that accept the correct kernel there."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Protocol, TypeVar

from gradoracle.model.kernel import Kernel
from gradoracle.mutation.fork import Fork, Lost, Send
from gradoracle.mutation.install import Stillborn

from .correct import CorrectRun, Judgement, judge
from .peers import RULES, Compared, Rule

LIMIT = 40.0  # seconds that a wrong kernel may take on one case
MOST_LOST = 4  # after its process died or hung on so many cases, a wrong kernel is not tried again


@dataclass
class Verdict:
    """The verdict of one rule on one wrong kernel in one style of input.

    Attributes:
        style: of the input.
        rule: its name.
        caught: the case line on which it rejects the wrong kernel and accepts the correct one; "" for none.
        cases: how many cases it judged until then.
        seconds: of the kernel, of the reference and of the rule itself, over these cases.
        failure: how the kernel failed to return tensors on that case.
    """

    style: str
    rule: str
    caught: str = ""
    cases: int = 0
    seconds: float = 0.0
    failure: str = ""


class Fault:
    """One wrong kernel, tried in forks (an ``Attempt``).

    Args:
        key: its name.
        runs: the cases as run by the correct kernel, in the order in which they are tried.
        kernel: the wrong kernel, or the correct one that ``install`` changes.
        install: changes the kernel, in the fork; may raise Stillborn.
        rules: on tensors.
    """

    def __init__(
        self,
        key: str,
        runs: Sequence[CorrectRun],
        kernel: Kernel,
        install: Callable[[], None] | None = None,
        rules: Sequence[Rule[Compared]] = RULES,
    ) -> None:
        self.key, self.runs, self.kernel, self.install, self.rules = key, runs, kernel, install, rules
        self.limit = LIMIT
        self.left = list(range(len(runs)))
        self.stillborn = ""
        self.verdicts = {(r.style, name): Verdict(r.style, name) for r in runs for name in sorted(r.judged)}
        self._at, self._lost = -1, 0

    def run(self, tell: Send) -> None:
        """Try the remaining cases until every rule has caught the kernel or there are no more."""
        try:
            if self.install is not None:
                self.install()
        except Stillborn as reason:
            tell("stillborn", -1, str(reason))
            return
        for number in list(self.left):
            names = self._open(self.runs[number])
            if names:
                tell("begun", number, None)
                judgement = judge(self.runs[number], self.kernel, names, self.rules)
                self._enter(number, judgement)
                tell("judged", number, judgement)

    def take(self, *message: Any) -> None:
        """Record a message of the fork."""
        kind, number, found = message
        self._at = number
        if kind == "stillborn":
            self.stillborn = found
        elif kind == "judged":
            self._enter(number, found)

    def lost(self, how: str) -> bool:
        """The process died or hung on a case: every rule rejects that, as every test would."""
        if self._at not in self.left:
            return False
        names = self._open(self.runs[self._at])
        self._enter(self._at, Judgement(frozenset(names), 0.0, dict.fromkeys(names, 0.0), how))
        self._lost += 1
        return bool(self.left) and self._lost < MOST_LOST

    def entry(self) -> dict[str, Any]:
        """The results as plain values."""
        return {
            "fault": self.key,
            "stillborn": self.stillborn,
            "cases": dict(Counter(each.style for each in self.runs)),
            "verdicts": [{**asdict(v), "seconds": round(v.seconds, 4)} for v in self.verdicts.values()],
        }

    def _open(self, correct: CorrectRun) -> set[str]:
        """The rules that accept the correct kernel on a case and have not caught the wrong one yet."""
        return {name for name in correct.accepts if not self.verdicts[correct.style, name].caught}

    def _enter(self, number: int, judgement: Judgement) -> None:
        correct = self.runs[number]
        self.left.remove(number)
        for name, own in judgement.rules.items():
            verdict = self.verdicts[correct.style, name]
            verdict.cases += 1
            verdict.seconds += own + correct.reference(name) + judgement.kernel
            if name in judgement.rejects:
                verdict.caught, verdict.failure = str(correct.case), judgement.failure


def alarms(runs: Iterable[CorrectRun]) -> list[dict[str, Any]]:
    """For each style and rule: how many cases of correct kernels it judges and rejects, and the first rejected one."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for correct in runs:
        for name in sorted(correct.judged):
            empty = {"style": correct.style, "rule": name, "cases": 0, "alarms": 0, "first": "", "excused": ""}
            own = found.setdefault((correct.style, name), empty)
            if correct.excuse:
                own["excused"] = own["excused"] or correct.excuse
                continue
            own["cases"] += 1
            if name not in correct.accepts:
                own["alarms"] += 1
                own["first"] = own["first"] or str(correct.case)
    return list(found.values())


def covering(runs: Sequence[CorrectRun], file: str, lines: range, most: Mapping[str, int]) -> list[CorrectRun]:
    """The cases on which the correct kernel executed some of these lines, limited in number for each style."""
    taken: dict[str, int] = {}
    found = []
    for correct in runs:
        if correct.lines.get(file, frozenset()).isdisjoint(lines) or not correct.accepts:
            continue
        taken[correct.style] = taken.get(correct.style, 0) + 1
        if taken[correct.style] <= most.get(correct.style, len(runs)):
            found.append(correct)
    return found


class Attempt(Protocol):
    """Work for forks: ``run`` is called in the fork, the other methods in its parent."""

    limit: float
    """Seconds without a message after which the fork counts as hanging."""

    def run(self, tell: Send) -> None:
        """Do the remaining work, and ``tell`` the parent of each piece."""

    def take(self, *message: Any) -> None:
        """Receive what the fork told."""

    def lost(self, how: str) -> bool:
        """The fork died or hung; returns whether to start another."""


A = TypeVar("A", bound=Attempt)


@dataclass
class _Running(Generic[A]):
    attempt: A
    fork: Fork
    deadline: float


def forked(attempts: Iterable[A], count: int) -> Iterator[A]:
    """Run attempts, ``count`` at a time, and yield each when it is done. Closing the iterator kills running forks."""
    source, running = iter(attempts), dict[Connection, _Running[A]]()
    try:
        while True:
            while len(running) < count and (attempt := next(source, None)) is not None:
                _start(attempt, running)
            if not running:
                return
            soonest = min(each.deadline for each in running.values())
            ready = wait(list(running), timeout=max(0.0, soonest - time.monotonic()))
            late = [each.fork.pipe for each in running.values() if each.deadline < time.monotonic()]
            for pipe in dict.fromkeys((*ready, *late)):
                yield from _received(running[pipe], running)  # type: ignore[index]
    finally:
        for each in running.values():
            each.fork.close()


def _received(each: _Running[A], running: dict[Connection, _Running[A]]) -> Iterator[A]:
    """Pass a message to its attempt; yields the attempt if this was its last."""
    how = ""
    try:
        message = each.fork.receive(0.0)
    except TimeoutError:
        message, how = None, "took too long"
    except Lost as error:
        message, how = None, str(error)
    if message is not None:
        each.attempt.take(*message)
        each.deadline = time.monotonic() + each.attempt.limit
        return
    del running[each.fork.pipe]
    each.fork.close()
    if how and each.attempt.lost(how):
        _start(each.attempt, running)
    else:
        yield each.attempt


def _start(attempt: A, running: dict[Connection, _Running[A]]) -> None:
    def run(tell: Send) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        attempt.run(tell)

    fork = Fork(run)
    running[fork.pipe] = _Running(attempt, fork, time.monotonic() + attempt.limit)
