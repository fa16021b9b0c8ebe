"""Trial: one mutant against the cases of a check, in a process forked for it from one that has everything loaded.

The fork has the unmutated kernel's modules, puts the mutant in their place (``install``) and judges case after case by
the same laws as ``gradoracle check``, until one is violated. A fork that dies or hangs is a fact about the mutant and
costs nobody else anything.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from gradoracle.check.aggregate import Aggregate
from gradoracle.check.diagnosis.diagnosis import diagnose
from gradoracle.check.diagnosis.symptom import of_results
from gradoracle.check.judge_case import Setup, examine, subjects
from gradoracle.execution.device import prepare
from gradoracle.execution.kernel_runner import Subject
from gradoracle.execution.process import Phase
from gradoracle.model.case import Case
from gradoracle.model.job import CaseResult, Job
from gradoracle.model.property import Property
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status
from gradoracle.mutation.child import settle
from gradoracle.mutation.install import Stillborn, install
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.outcome import Fate, Outcome
from gradoracle.mutation.remembered import Remembered
from gradoracle.mutation.sources import Lines, executed, sources_of
from gradoracle.mutation.specialisations import Specialisation, launched
from gradoracle.project.target import resolve

MOST_TROUBLE = 4  # cases on which a mutant crashes, is refused or hangs, with no law violated: it is tried no more
HANGS = 2
SLOWER = 10.0  # times as long as the unmutated kernel's whole case a mutant's may take, and some seconds
GRACE = 10.0
FURTHER = 3  # cases that are judged beside the one that kills, for a diagnosis
NEAR = 12  # among so many that come next, ordinary ones first
SLOW = 3.0  # seconds of a case that is tried after all shorter ones, and is not one of the further ones
_SOME = 8  # the longest dim of an ordinary case
_RAISED = (Reason.NO_DERIVATIVE, Reason.RAISED)
"""Why a derivative is not checked that the kernel gives and a mutant does not."""


@dataclass(frozen=True)
class Seen:
    """What the unmutated kernel did on one case: verdicts, lines of source, and the specialisations it launched."""

    result: CaseResult
    lines: Lines
    seconds: float
    launches: frozenset[Specialisation]


@dataclass(frozen=True)
class Rehearsal:
    """Job: run the unmutated kernel on a case and say which lines that executes."""

    job: Job


@dataclass(frozen=True)
class Trial:
    """Job: try a mutant on cases.

    Attributes:
        mutant: the fault.
        module: the loaded module that it goes into, and the module's file.
        file: where that module lies.
        order: numbers of the cases that execute its line, in the order in which they are tried: all of them by the
            laws that compare with the oracle, and then all by the others, which take most of the time.
        known: a pickle of (jobs, what the unmutated kernel did on each), both by number.
    """

    mutant: Mutant
    module: str
    file: str
    order: tuple[int, ...]
    known: str


Known = tuple[Sequence[Job], Sequence[Seen]]
Step = tuple[int, bool]


class _Bench:
    """A target with its laws and oracle, loaded once in a worker."""

    def __init__(self, setup: Setup, more: Sequence[str], folder: str) -> None:
        self.setup = setup
        self.family, self.kernels, self.laws = subjects(setup)
        self.oracle = Remembered(Path(folder), self.family, setup.oracle, graphs=1 << 14)
        self.files = [source.file for source in sources_of(resolve(setup.target, setup.family), more)]
        self._known: dict[str, Known] = {}

    def judged(self, job: Job, phase: Phase) -> CaseResult:
        """One case by its laws."""

        @contextmanager
        def guard(name: str) -> Iterator[None]:
            phase(name, self.setup.call_seconds)
            try:
                yield
            finally:
                phase(None, None)

        subject = Subject(self.family, self.kernels[job.kernel], guard)
        laws: list[Property] = [self.laws[name] for name in job.laws]
        return examine(job, subject, self.oracle, laws, self.setup.device)

    def known(self, path: str) -> Known:
        """What was found out of the unmutated kernel."""
        if path not in self._known:
            self._known[path] = pickle.loads(Path(path).read_bytes())
        return self._known[path]


def entry(given: tuple[Setup, tuple[str, ...], str]) -> Callable[[Rehearsal | Trial, Phase], Seen | Outcome]:
    """The worker's entry: load the target once, then rehearse and try; ``given`` ends with a folder to keep in."""
    setup, more, folder = given
    torch.set_num_threads(1)
    prepare(setup.device)
    bench = _Bench(setup, more, folder)

    def work(job: Rehearsal | Trial, phase: Phase) -> Seen | Outcome:
        if isinstance(job, Trial):
            return _tried(bench, job)
        begun = time.perf_counter()
        with executed(bench.files) as lines, launched() as launches:
            result = bench.judged(job.job, phase)
        seconds = time.perf_counter() - begun
        return Seen(result, {file: frozenset(found) for file, found in lines.items()}, seconds, frozenset(launches))

    return work


@dataclass
class _Progress:
    """How far a trial has come, over its forks; a step is a case and whether its decisive laws judge it."""

    left: list[Step]
    cases: set[int] = field(default_factory=set)
    trouble: tuple[Fate, str] | None = None
    troubles: int = 0
    hangs: int = 0

    def lose(self, step: Step, fate: Fate, reason: str) -> None:
        """A step, and the fork with it, is lost."""
        self.left.remove(step)
        self.note(fate, reason)

    def note(self, fate: Fate, reason: str) -> None:
        """A case came to nothing; the first reason is kept."""
        self.trouble = self.trouble or (fate, reason)
        self.troubles += 1
        self.hangs += fate is Fate.HUNG

    @property
    def given_up(self) -> bool:
        """Whether nothing better is to be expected."""
        return self.troubles >= MOST_TROUBLE or self.hangs >= HANGS


def _tried(bench: _Bench, trial: Trial) -> Outcome:
    """Fork until every case has been judged, one violates a law, or too many come to nothing."""
    begun = time.monotonic()
    jobs, seen = bench.known(trial.known)
    progress = _Progress([(number, decisive) for decisive in (True, False) for number in trial.order])
    made: dict[int, CaseResult] = {}
    outcome: Outcome | None = None
    while progress.left and outcome is None and not progress.given_up:
        outcome = _forked(bench, trial, jobs, seen, progress, made)
    outcome = outcome or _ended(trial, seen, progress, made)
    return replace(
        outcome, tried=len(progress.cases), covering=len(trial.order), seconds=round(time.monotonic() - begun, 3)
    )


def _ended(trial: Trial, seen: Sequence[Seen], progress: _Progress, made: dict[int, CaseResult]) -> Outcome:
    """No case violated a law: what trouble there was, or else the rules that pool over all cases, or a survivor."""
    if progress.trouble is not None:
        return Outcome(trial.mutant, progress.trouble[0], reason=progress.trouble[1])
    tally = Aggregate()
    for number, each in enumerate(seen):
        tally.add(made.get(number, each.result))
    for verdict in tally.verdicts({}):
        if verdict.status is Status.VIOLATED:
            reason = f"over all {verdict.dtype} cases together"
            return Outcome(trial.mutant, Fate.KILLED, verdict.law, (verdict.law,), reason=reason)
    return Outcome(trial.mutant, Fate.SURVIVED, reason="" if trial.order else "no case executes its line")


def _forked(
    bench: _Bench,
    trial: Trial,
    jobs: Sequence[Job],
    seen: Sequence[Seen],
    progress: _Progress,
    made: dict[int, CaseResult],
) -> Outcome | None:
    """One fork, as far as it comes; an outcome where it is known."""
    ours, theirs = Pipe(duplex=False)
    gc.freeze()  # what is shared with the fork need not be copied for being counted
    child = os.fork()
    if child == 0:
        _live(bench, trial, jobs, seen, progress.left, theirs)
    theirs.close()
    step = progress.left[0]
    number = step[0]
    deadline = time.monotonic() + GRACE + SLOWER * seen[number].seconds
    try:
        while True:
            if not ours.poll(max(0.0, deadline - time.monotonic())):
                progress.lose(
                    step, Fate.HUNG, f"{jobs[number].case}: took more than {SLOWER:g} times the kernel's own time"
                )
                return None
            try:
                kind, *rest = pickle.loads(ours.recv_bytes())
            except EOFError:
                progress.lose(step, Fate.CRASHED, f"{jobs[number].case}: the process died")
                return None
            if kind == "stillborn":
                return Outcome(trial.mutant, Fate.STILLBORN, reason=rest[0])
            if kind == "over":
                return None
            if kind == "fault":
                progress.lose(step, Fate.CRASHED, f"{jobs[number].case}: gradoracle itself failed: {rest[0]}")
                return None
            if kind == "begun":
                step = rest[0]
                number = step[0]
                deadline = time.monotonic() + GRACE + SLOWER * seen[number].seconds
                continue
            result: CaseResult = rest[0]
            progress.left.remove(step)
            progress.cases.add(number)
            before = made[number].results if number in made else ()
            made[number] = replace(result, results=(*before, *result.results))
            outcome = _judged(trial.mutant, result, seen[number].result, progress)
            if outcome is not None and len(rest) > 1:
                return replace(outcome, diagnosis=rest[1])
            if outcome is not None or progress.given_up:
                return outcome
    finally:
        ours.close()
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _judged(mutant: Mutant, result: CaseResult, own: CaseResult, progress: _Progress) -> Outcome | None:
    """A kill, where a law is violated that the unmutated kernel keeps; trouble is noted."""
    before = {each.law: each.status for each in own.results}
    for each in result.results:
        if each.status is Status.ERROR:
            raise RuntimeError(f"{each.law}: {each.reason}")
    violated = [each for each in result.results if each.status is Status.VIOLATED]
    if violated:
        laws = tuple(each.law for each in violated)
        return Outcome(mutant, Fate.KILLED, laws[0], laws, str(result.case))
    for status, fate in ((Status.CRASHED, Fate.CRASHED), (Status.REFUSED, Fate.REFUSED)):
        for each in result.results:
            if each.status is status and before.get(each.law) is not status:
                progress.note(fate, f"{result.case}: {each.reason}")
                return None
    for each in result.results:
        if before.get(each.law) is Status.HOLDS and each.status is Status.NOT_CHECKED and each.why in _RAISED:
            progress.note(Fate.REFUSED, f"{result.case}: {each.reason}")
            return None
    return None


def _live(
    bench: _Bench,
    trial: Trial,
    jobs: Sequence[Job],
    seen: Sequence[Seen],
    steps: Sequence[Step],
    pipe: Connection,
) -> None:
    """The whole life of a fork; never returns."""

    def tell(*message: Any) -> None:
        pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    try:
        settle()
        bench.oracle.keeps = False
        try:
            install(trial.mutant, trial.module, trial.file)
        except Stillborn as reason:
            tell("stillborn", str(reason))
            os._exit(0)
        for at, step in enumerate(steps):
            tell("begun", step)
            result = _judged_by(bench, jobs[step[0]], step[1])
            if trial.mutant.cause and _is_violated(result):
                others = [n for n, decisive in steps[at + 1 :] if decisive == step[1] and seen[n].seconds <= SLOW]
                others = sorted(others[:NEAR], key=lambda n: not _is_ordinary(jobs[n].case))
                shown = [jobs[number] for number in (step[0], *others[:FURTHER])]
                cause = _diagnosed(bench, shown, partial(tell, "begun", step))
                tell("case", result, cause)
            else:
                tell("case", result)
        tell("over")
    except BaseException as error:
        with suppress(OSError):
            tell("fault", f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)


def _judged_by(bench: _Bench, job: Job, decisive: bool) -> CaseResult:
    """One case by its decisive laws or by the others; where one of the former is violated, by all."""

    def judged(laws: list[str]) -> CaseResult:
        return bench.judged(replace(job, laws=tuple(laws)), lambda name, limit: None)

    others = [name for name in job.laws if not bench.laws[name].decisive]
    if not decisive:
        return judged(others)
    result = judged([name for name in job.laws if bench.laws[name].decisive])
    if _is_violated(result):
        return replace(result, results=(*result.results, *judged(others).results))
    return result


def _is_violated(result: CaseResult) -> bool:
    return any(each.status is Status.VIOLATED for each in result.results)


def _is_ordinary(case: Case) -> bool:
    """Whether a case tells by its values what is wrong: normal ones, and more than a few."""
    recipes = {draw.recipe for draw in case.draws.values()}
    return recipes <= {"normal", "index", "highest"} and max(case.dims.values()) >= _SOME


def _diagnosed(bench: _Bench, jobs: Sequence[Job], begun: Callable[[], None]) -> str:
    """The cause that a report of these cases would name, where a law is violated on them."""
    symptoms = []
    for job in jobs:
        begun()
        result = bench.judged(replace(job, presets=True, formulas=True), lambda name, limit: None)
        if _is_violated(result):
            symptoms += of_results(result.results, job.case, bench.laws)
    return diagnose(symptoms).cause
