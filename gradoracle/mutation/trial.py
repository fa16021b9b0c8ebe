"""Trial: one mutant on the cases of a check, in a process forked from one that has everything loaded.

The fork replaces the unmutated code by the mutant's (``install``) and judges case after case by the same properties as
``gradoracle check``, until one is violated. A fork that dies or hangs is a fact about the mutant, at no other cost.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from pathlib import Path

import torch

from gradoracle.check.diagnosis.diagnosis import diagnose, of_results
from gradoracle.check.judge_case import examine
from gradoracle.check.setup import Setup, subjects
from gradoracle.check.tally import verdicts_of
from gradoracle.execution.device import prepare
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.case import Case
from gradoracle.model.job import CaseResult, Job, Phase, PropertyResult
from gradoracle.model.property import Property, PropertyKind
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status
from gradoracle.mutation.cached_oracle import CachedOracle
from gradoracle.mutation.fork import Fork, Lost, Raised, Send
from gradoracle.mutation.install import Stillborn, install
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.outcome import Fate, MutantResult
from gradoracle.mutation.sources import Lines, Source, executed, sources_of
from gradoracle.mutation.specialisations import Specialisation, launched
from gradoracle.project.target import resolve

MOST_TROUBLE = 4  # cases on which a mutant crashes, is refused or hangs before it is given up
HANGS = 2
SLOWER = 10.0  # a mutant's case may take so many times as long as the unmutated kernel's, and GRACE seconds
GRACE = 10.0
FURTHER = 3  # further cases that are judged for a diagnosis
NEAR = 12  # among so many that come next, ordinary ones first
SLOW = 3.0  # seconds; a case that takes longer is tried after all others, and not for a diagnosis
_SOME = 8  # least length of the longest dim of an ordinary case
_RAISED = (Reason.NO_DERIVATIVE, Reason.RAISED)
"""Why a derivative is not checked that the kernel has and a mutant lacks."""


@dataclass(frozen=True)
class Unmutated:
    """What the unmutated kernel did on one case: verdicts, lines executed, seconds, specialisations launched."""

    result: CaseResult
    lines: Lines
    seconds: float
    launches: frozenset[Specialisation]

    def runs(self, source: Source, lines: range) -> bool:
        """Whether the case executes one of some lines."""
        return not self.lines.get(source.file, frozenset()).isdisjoint(lines)


@dataclass(frozen=True)
class Rehearsal:
    """Job: run the unmutated kernel on a case and record which lines that executes."""

    job: Job


@dataclass(frozen=True)
class Trial:
    """Job: try a mutant on cases.

    Attributes:
        mutant: the one that was tried.
        source: the module that it goes into.
        order: numbers of the cases that execute its line, in the order of the trial; all are judged in one stage
            before any is judged in the next.
        known: a pickle of (jobs, what the unmutated kernel did on each), both by number.
    """

    mutant: Mutant
    source: Source
    order: tuple[int, ...]
    known: str


class Stage(IntEnum):
    """Which properties judge, in the order of a trial.

    DECISIVE: those that compare with the oracle, the cheapest.
    OTHERS: all others of the kernel as written.
    WIDENED: those of the widened kernel, so that what these alone see is known.
    """

    DECISIVE = 0
    OTHERS = 1
    WIDENED = 2

    @classmethod
    def of(cls, prop: Property) -> Stage:
        """The stage in which a property judges."""
        return cls.WIDENED if prop.kind is PropertyKind.DEFINITION else cls.DECISIVE if prop.decisive else cls.OTHERS


Known = tuple[Sequence[Job], Sequence[Unmutated]]
Step = tuple[int, Stage]  # the number of a case, and who judges it


class _Bench:
    """A target with its properties and oracle, loaded once in a worker."""

    def __init__(self, setup: Setup, more: Sequence[str], folder: str) -> None:
        self.setup = setup
        self.family, self.kernels, self.properties = subjects(setup)
        self.oracle = CachedOracle(Path(folder), self.family, setup.oracle, graphs=1 << 14)
        self.files = [source.file for source in sources_of(resolve(setup.target, setup.family), more)]
        self._known: dict[str, Known] = {}

    def judged(self, job: Job, phase: Phase = lambda name, limit: None) -> CaseResult:
        """One case by its properties."""

        @contextmanager
        def guard(name: str) -> Iterator[None]:
            phase(name, self.setup.call_seconds)
            try:
                yield
            finally:
                phase(None, None)

        subject = KernelRunner(self.family, self.kernels[job.kernel], guard, device=self.setup.device)
        properties: list[Property] = [self.properties[name] for name in job.properties]
        return examine(job, subject, self.oracle, properties)

    def properties_of(self, job: Job, stage: Stage) -> tuple[str, ...]:
        """The properties that judge a case in a stage."""
        return tuple(name for name in job.properties if Stage.of(self.properties[name]) is stage)

    def judged_in(self, job: Job, stage: Stage) -> CaseResult:
        """One case by the properties of a stage; where one is violated, by those of later stages too."""
        result = self.judged(replace(job, properties=self.properties_of(job, stage)))
        later = tuple(name for name in job.properties if Stage.of(self.properties[name]) > stage)
        if later and _is_violated(result):
            return replace(result, results=(*result.results, *self.judged(replace(job, properties=later)).results))
        return result

    def diagnosed(self, jobs: Sequence[Job], begun: Callable[[], None]) -> str:
        """The cause that a report of these cases would name, where a property is violated on them."""
        results: list[PropertyResult] = []
        for job in jobs:
            begun()
            results += self.judged(replace(job, edited=True)).results
        return diagnose(of_results(results, self.properties)).cause

    def known(self, path: str) -> Known:
        """What is known of the unmutated kernel."""
        if path not in self._known:
            self._known[path] = pickle.loads(Path(path).read_bytes())
        return self._known[path]


def entry(given: tuple[Setup, tuple[str, ...], str]) -> Callable[[Rehearsal | Trial, Phase], Unmutated | MutantResult]:
    """The worker's entry: load the target once, then rehearse and try; ``given`` ends with the oracle's folder."""
    setup, more, folder = given
    torch.set_num_threads(1)
    prepare(setup.device)
    bench = _Bench(setup, more, folder)

    def work(job: Rehearsal | Trial, phase: Phase) -> Unmutated | MutantResult:
        if isinstance(job, Trial):
            return _Attempt(bench, job).outcome()
        begun = time.perf_counter()
        with executed(bench.files) as lines, launched() as launches:
            result = bench.judged(job.job, phase)
        seconds = time.perf_counter() - begun
        return Unmutated(
            result, {file: frozenset(found) for file, found in lines.items()}, seconds, frozenset(launches)
        )

    return work


class _Attempt:
    """One trial, over as many forks as it takes."""

    def __init__(self, bench: _Bench, trial: Trial) -> None:
        self._bench, self._trial, self._mutant = bench, trial, trial.mutant
        self._jobs, self._seen = bench.known(trial.known)
        self._left: list[Step] = [
            (number, stage)
            for stage in Stage
            for number in trial.order
            if bench.properties_of(self._jobs[number], stage)
        ]
        self._made: dict[int, CaseResult] = {}
        self._troubles: list[MutantResult] = []  # cases that came to nothing

    def outcome(self) -> MutantResult:
        """Fork until every case has been judged, one violates a property, or too many come to nothing."""
        begun = time.monotonic()
        found: MutantResult | None = None
        while self._left and found is None and not self._is_given_up():
            found = self._forked()
        seconds = round(time.monotonic() - begun, 3)
        return replace(found or self._ended(), tried=len(self._made), covering=len(self._trial.order), seconds=seconds)

    def _is_given_up(self) -> bool:
        hangs = sum(each.fate is Fate.HUNG for each in self._troubles)
        return len(self._troubles) >= MOST_TROUBLE or hangs >= HANGS

    def _ended(self) -> MutantResult:
        """No case violated a property: the first trouble, or else the rules that pool over all cases, or a survivor."""
        if self._troubles:
            return self._troubles[0]
        reason = "" if self._trial.order else "no case executes its line"
        return self._pooled() or MutantResult(self._mutant, Fate.SURVIVED, reason=reason)

    def _pooled(self) -> MutantResult | None:
        """A kill by the rules that pool over all cases, those of the kernel as written first."""
        results = (self._made.get(number, each.result) for number, each in enumerate(self._seen))
        stages = {name: Stage.of(prop) for name, prop in self._bench.properties.items()}
        violated = [verdict for verdict in verdicts_of(results) if verdict.status is Status.VIOLATED]
        if not violated:
            return None
        first = min(violated, key=lambda verdict: stages[verdict.property_name] is Stage.WIDENED)
        reason, widened = f"over all {first.dtype} cases together", stages[first.property_name] is Stage.WIDENED
        return MutantResult(
            self._mutant, Fate.KILLED, first.property_name, (first.property_name,), reason=reason, widened=widened
        )

    def _forked(self) -> MutantResult | None:
        """One fork, as far as it gets; an outcome where it is known."""
        with closing(Fork(self._live)) as fork:
            step = self._left[0]
            deadline = self._deadline(step)
            while True:
                try:
                    message = fork.receive(deadline)
                except TimeoutError:
                    self._lose(step, Fate.HUNG, f"took more than {SLOWER:g} times the kernel's own time")
                    return None
                except Raised as error:
                    self._lose(step, Fate.CRASHED, f"gradoracle itself failed: {error}")
                    return None
                except Lost as error:
                    self._lose(step, Fate.CRASHED, str(error))
                    return None
                if message is None:
                    return None
                kind, *rest = message
                if kind == "stillborn":
                    return MutantResult(self._mutant, Fate.STILLBORN, reason=rest[0])
                if kind == "begun":
                    (step,) = rest
                    deadline = self._deadline(step)
                    continue
                outcome = self._judged(step, *rest)
                if outcome is not None or self._is_given_up():
                    return outcome

    def _deadline(self, step: Step) -> float:
        return time.monotonic() + GRACE + SLOWER * self._seen[step[0]].seconds

    def _lose(self, step: Step, fate: Fate, what: str) -> None:
        """A step is lost, and the fork with it."""
        self._left.remove(step)
        self._note(fate, self._jobs[step[0]].case, what)

    def _note(self, fate: Fate, case: Case, what: str) -> None:
        self._troubles.append(MutantResult(self._mutant, fate, reason=f"{case}: {what}"))

    def _judged(self, step: Step, result: CaseResult, cause: str) -> MutantResult | None:
        """A kill, where a property is violated that the unmutated kernel keeps; trouble is noted."""
        self._left.remove(step)
        number, stage = step
        pooled = self._pooled() if stage is Stage.WIDENED and _is_violated(result) else None
        if pooled is not None and not pooled.widened:
            return pooled
        earlier = self._made[number].results if number in self._made else ()
        self._made[number] = replace(result, results=(*earlier, *result.results))
        if errors := [each for each in result.results if each.status is Status.ERROR]:
            raise RuntimeError(f"{errors[0].property_name}: {errors[0].reason}")
        if violated := tuple(each.property_name for each in result.results if each.status is Status.VIOLATED):
            case = str(result.case)
            widened = stage is Stage.WIDENED
            return MutantResult(
                self._mutant, Fate.KILLED, violated[0], violated, case, diagnosis=cause, widened=widened
            )
        before = {each.property_name: each.status for each in self._seen[number].result.results}
        for status, fate in ((Status.CRASHED, Fate.CRASHED), (Status.REFUSED, Fate.REFUSED)):
            for each in result.results:
                if each.status is status and before.get(each.property_name) is not status:
                    self._note(fate, result.case, each.reason)
                    return None
        for each in result.results:
            lacks = each.status is Status.NOT_CHECKED and each.why in _RAISED
            if lacks and before.get(each.property_name) is Status.HOLDS:
                self._note(Fate.REFUSED, result.case, each.reason)
                return None
        return None

    def _live(self, send: Send) -> None:
        """The work of a fork: put the mutant in place, and judge what is left."""
        self._bench.oracle.keeps = False
        try:
            install(self._mutant, self._trial.source)
        except Stillborn as reason:
            send("stillborn", str(reason))
            return
        for at, step in enumerate(self._left):
            send("begun", step)
            result = self._bench.judged_in(self._jobs[step[0]], step[1])
            cause = ""
            if self._mutant.cause and _is_violated(result):
                cause = self._bench.diagnosed(self._shown(at), partial(send, "begun", step))
            send("case", result, cause)

    def _shown(self, at: int) -> list[Job]:
        """The case of a step, and those of a few further ones, for a diagnosis."""
        number, stage = self._left[at]
        others = [n for n, own in self._left[at + 1 :] if own is stage and self._seen[n].seconds <= SLOW]
        others = sorted(others[:NEAR], key=lambda n: not _is_ordinary(self._jobs[n].case))
        return [self._jobs[n] for n in (number, *others[:FURTHER])]


def _is_violated(result: CaseResult) -> bool:
    return any(each.status is Status.VIOLATED for each in result.results)


def _is_ordinary(case: Case) -> bool:
    """Whether the values of a case show what is wrong: normal ones, and more than a few."""
    recipes = {draw.recipe for draw in case.draws.values()}
    return recipes <= {"normal", "index", "highest"} and max(case.dims.values()) >= _SOME
