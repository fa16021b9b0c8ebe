"""Run: make mutants of a target's kernels, and find out which property kills each.

First the unmutated kernel is judged on every case of ``gradoracle check``. All properties must hold, and the lines that
each case executes are recorded. Then each mutant is tried on the cases that execute its line.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradoracle.check.plan import Subjects, plan, resolved
from gradoracle.check.repeat_command import options_of, repeated
from gradoracle.check.setup import Setup
from gradoracle.check.tally import verdicts_of
from gradoracle.execution import device, environment
from gradoracle.execution.executor import Result, StartupError
from gradoracle.execution.local_pool import LocalPool
from gradoracle.model.errors import UsageError
from gradoracle.model.job import Job
from gradoracle.model.verdict import FAILING, Status
from gradoracle.mutation.compiled import Asked, equivalents
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.outcome import Fate, MutantResult, score
from gradoracle.mutation.plant import choose, mutants_of
from gradoracle.mutation.proofs import proofs_beside, read_proofs
from gradoracle.mutation.record import Earlier, MutationRecord, fingerprint, read_earlier
from gradoracle.mutation.sources import Source, Statements, sources_of
from gradoracle.mutation.specialisations import Specialisation
from gradoracle.mutation.trial import SLOW, Rehearsal, Trial, Unmutated
from gradoracle.project.request import Progress, Request
from gradoracle.project.target import Target, resolve

MUTANTS = 120
DECISIVE = ("dtype", "contract", "arg")  # options of a check that decide which code runs, and what it must keep
UNKNOWN = "its compiled code was not compared with the kernel's"  # of a survivor


class WrongKernel(Exception):
    """A property does not hold on the unmutated kernel, so that there is nothing to measure. One sentence."""


@dataclass(frozen=True)
class Mutation:
    """What to mutate; plain values, as the command line gives them.

    Attributes:
        target: a shipped name, a file, ``file:callable`` or ``module:callable``.
        family: the definition that an outside callable claims to implement.
        dtypes: None: those that the kernel supports.
        contracts: dtype -> preset, which replaces the kernel's own.
        arguments: fixed options, and further keywords for the kernel.
        count: number of mutants, spread over the operators; None: all.
        seconds: time after which no further trial begins.
        seed: for the choice of mutants and the stream of cases.
        examples: number of cases; None: as many as ``check`` takes.
        workers: number of processes; None: one for each core that this process may use.
        equivalents: a file of proofs (``proofs``); None: that of a shipped family, if it has one.
        fresh: whether the outcomes of earlier runs are removed.
        sources: further modules to mutate, by name.
        since: an earlier report in json, to compare with.
    """

    target: str
    family: str | None = None
    dtypes: tuple[str, ...] | None = None
    contracts: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    count: int | None = MUTANTS
    seconds: float | None = None
    seed: int = 0
    examples: int | None = None
    workers: int | None = None
    equivalents: Path | None = None
    fresh: bool = False
    sources: tuple[str, ...] = ()
    since: Path | None = None


@dataclass
class Found:
    """Result of a run.

    Attributes:
        mutation: what was asked for.
        outcomes: one for each chosen mutant, in the order of the choice.
        planted: how many mutants there are in total.
        cases: on how many cases every property holds on the unmutated kernel.
        seconds: of this run.
        earlier: how many outcomes come from earlier runs.
        notes: sentences, such as on proofs of mutants that no longer exist.
        environment: versions.
        since: the earlier report that was asked for.
        options: the words of the options that decide outcomes, beyond the target, where they are not the defaults.
    """

    mutation: Mutation
    outcomes: list[MutantResult]
    planted: int
    cases: int = 0
    seconds: float = 0.0
    earlier: int = 0
    notes: list[str] = field(default_factory=list)
    environment: Mapping[str, Any] = field(default_factory=environment.describe)
    since: Earlier | None = None
    options: tuple[str, ...] = ()

    @property
    def score(self) -> float | None:
        """Killed by a property / (killed by a property + survived); None where there is neither."""
        return score(self.outcomes)


def mutate(asked: Mutation, progress: Callable[[str], Progress] = lambda noun: Progress()) -> Found:
    """Plant, try, score.

    Args:
        asked: what to mutate.
        progress: makes a display of the progress, given what is counted.

    Raises:
        UsageError: an unknown target, nothing to mutate, a file of proofs or an earlier report that cannot be read.
        WrongKernel: the unmutated kernel violates a property or crashes.
    """
    started = time.monotonic()
    since = None if asked.since is None else read_earlier(asked.since)
    plan = _Plan(asked)
    found = Found(asked, [], len(plan.all), since=since, options=plan.options)
    found.notes += [f"the proof of {key} matches no mutant" for key in plan.stale]
    if since is not None and since.options != plan.options:
        found.notes.append(f"{since.name} is of other options: {' '.join(since.options) or 'the defaults'}")
    record = MutationRecord(" ".join([asked.target, *plan.options]), plan.mark)
    if asked.fresh:
        record.forget()
    survivors = [o for key, o in record.known(plan.chosen, pending=True).items() if key not in plan.proofs]
    known = record.known(plan.chosen) | {outcome.mutant.key: outcome for outcome in survivors}
    found.earlier = len(known)
    left = [mutant for mutant in plan.chosen if mutant.key not in known and mutant.key not in plan.proofs]
    if left or survivors:
        try:
            with tempfile.TemporaryDirectory() as kept, plan.workers(kept) as workers:
                seen = _rehearsed(plan, workers, progress("cases of the unmutated kernel"))
                found.cases = len(seen)
                for outcome in _tried(plan, workers, left, seen, progress("mutants"), started):
                    survived = outcome.fate is Fate.SURVIVED
                    record.add(outcome, pending=survived)
                    survivors += [outcome] if survived else []
                    known[outcome.mutant.key] = outcome
            for outcome in _compared(plan, survivors, seen):
                record.add(outcome)
                known[outcome.mutant.key] = outcome
        except KeyboardInterrupt:
            if not known:
                raise
            found.notes.append("interrupted; the same command resumes where this run stopped")
    for mutant in plan.chosen:
        if mutant.key in plan.proofs:
            found.outcomes.append(MutantResult(mutant, Fate.PROVEN, reason=plan.proofs[mutant.key]))
        else:
            found.outcomes.append(known.get(mutant.key, MutantResult(mutant, Fate.NOT_RUN)))
    found.seconds = time.monotonic() - started
    return found


class _Plan:
    """A target resolved, its cases and properties, its mutants chosen."""

    def __init__(self, asked: Mutation) -> None:
        self.asked = asked
        self.request = Request(
            asked.target,
            asked.family,
            device="cpu",
            dtypes=asked.dtypes,
            contracts=asked.contracts,
            arguments=asked.arguments,
            examples=asked.examples,
            seed=asked.seed,
            workers=0,
        )
        subjects = resolved(self.request)
        self.jobs = cases_of(subjects)
        self.setup: Setup = subjects.setup
        self.target: Target = resolve(asked.target, asked.family)
        self.sources: list[Source] = sources_of(self.target, asked.sources)
        self.of = {source.shown: source for source in self.sources}
        self.all: list[Mutant] = [m for source in self.sources for m in mutants_of(source)]
        if not self.all:
            names = ", ".join(source.shown for source in self.sources)
            raise UsageError(
                f"{names} has nothing to mutate; expected a function decorated with triton.jit, an autograd.Function "
                "or a function that launches one"
            )
        self.chosen = choose(self.all, len(self.all) if asked.count is None else asked.count, asked.seed)
        self.proofs = read_proofs(asked.equivalents or proofs_beside(asked.target))
        self.stale = sorted(set(self.proofs) - {mutant.key for mutant in self.all})
        self.options = tuple(options_of(self.request, *DECISIVE)) + tuple(f"--source {name}" for name in asked.sources)
        self.mark = fingerprint(self.sources, (asked.family, asked.seed, asked.examples, *self.options))

    def workers(self, kept: str) -> LocalPool:
        """Processes with the target loaded, which keep the oracle's answers in a folder."""
        return pool("gradoracle.mutation.trial:entry", self.setup, self.asked.sources, kept, self.asked.workers)


def cases_of(subjects: Subjects) -> Sequence[Job]:
    """The cases of a check, without the properties of a kernel: these are about compilations, not about a run."""
    properties = subjects.properties
    return plan(subjects, lambda job: tuple(n for n in job.properties if properties[n].scope == "case")).jobs


def pool(entry: str, setup: Setup, more: Sequence[str], kept: str, count: int | None) -> LocalPool:
    """Worker processes that load a target once and keep the oracle's answers in a folder.

    Args:
        entry: the function that makes a worker, as in ``gradoracle.mutation.trial``.
        setup: of the target.
        more: names of further modules that are mutated.
        kept: the folder.
        count: number of processes; None: one for each core that this process may use.

    Raises:
        UsageError: no process can be started.
    """
    try:
        return LocalPool(
            entry,
            (setup, tuple(more), kept),
            count=count or environment.cores(),
            env=device.variables("cpu"),
            memory=environment.memory(free=True),
        )
    except StartupError as error:
        raise UsageError(f"no worker process can be started: {error.sentence}") from None


def _tried(
    plan: _Plan,
    workers: LocalPool,
    left: Sequence[Mutant],
    seen: Sequence[Unmutated],
    progress: Progress,
    started: float,
) -> Iterator[MutantResult]:
    """An outcome of each mutant, as they come, until the time is up."""
    numbered = sorted(range(len(seen)), key=lambda number: (seen[number].seconds > SLOW, number))
    statements = {source.shown: Statements(source.text) for source in plan.sources}
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder) / "known"
        known.write_bytes(pickle.dumps((plan.jobs, seen), pickle.HIGHEST_PROTOCOL))

        def trials() -> Iterator[Trial]:
            for mutant in left:
                if plan.asked.seconds is not None and time.monotonic() - started > plan.asked.seconds:
                    return
                source, lines = plan.of[mutant.module], statements[mutant.module].lines(mutant.line)
                order = tuple(n for n in numbered if seen[n].runs(source, lines))
                yield Trial(mutant, source, order, str(known))

        progress.plan(len(left))
        survived = 0
        with closing(progress):
            for done, result in enumerate(workers.run(trials()), 1):
                outcome: MutantResult | None = result.value
                if outcome is None:  # the worker itself was lost: no kill
                    reason = f"the process that tries mutants failed: {_how(result)}"
                    outcome = MutantResult(result.job.mutant, Fate.CRASHED, reason=reason)
                survived += outcome.fate is Fate.SURVIVED
                progress.case(done, 0, 0, f"{survived} survived" if survived else "")
                yield outcome


def _compared(plan: _Plan, survivors: Sequence[MutantResult], seen: Sequence[Unmutated]) -> Iterator[MutantResult]:
    """Survivors; equivalent ones are those that compile to the same code as the unmutated kernel."""
    if not survivors:
        return
    launches: set[Specialisation] = set().union(*(each.launches for each in seen))
    asked = Asked(
        tuple(entry for entry in sys.path if isinstance(entry, str)),
        plan.asked.target,
        plan.asked.family,
        plan.asked.dtypes,
        tuple(source.module for source in plan.sources),
        tuple((outcome.mutant, plan.of[outcome.mutant.module]) for outcome in survivors),
        tuple(sorted(launches, key=repr)),
    )
    same = equivalents(asked, plan.asked.workers or environment.cores())
    for outcome in survivors:
        reason = same.get(outcome.mutant.key)
        if reason is None:
            yield replace(outcome, reason=UNKNOWN)
        else:
            yield replace(outcome, fate=Fate.EQUIVALENT, reason=reason) if reason else outcome


def _how(result: Result) -> str:
    """How a job ended that has no value."""
    return result.error.strip().splitlines()[-1] if result.error else str(result.crash and result.crash.how)


def _rehearsed(plan: _Plan, workers: LocalPool, progress: Progress) -> list[Unmutated]:
    """What the unmutated kernel does on each case, where every property holds on it."""
    seen = rehearsed(plan.jobs, workers, progress)
    for verdict in verdicts_of(each.result for each in seen):
        if verdict.status in FAILING:
            how = {Status.ERROR: "cannot be judged by", Status.CRASHED: "crashes under"}.get(verdict.status, "violates")
            raise WrongKernel(
                f"the unmutated kernel {verdict.kernel} {how} {verdict.property_name} in {verdict.dtype}; expected a "
                f"kernel "
                f"on which every property holds: {repeated(plan.request, plan.asked.target, 'cpu')} shows the case"
            )
    return seen


def rehearsed(jobs: Sequence[Job], workers: LocalPool, progress: Progress) -> list[Unmutated]:
    """What the unmutated kernel does on each case, in the order of the jobs.

    Raises:
        WrongKernel: it cannot be judged on a case.
    """
    seen: dict[int, Unmutated] = {}
    numbers = {id(job): number for number, job in enumerate(jobs)}
    progress.plan(len(jobs))
    with closing(progress):
        for result in workers.run(Rehearsal(job) for job in jobs):
            if result.value is None:
                raise WrongKernel(f"the unmutated kernel cannot be judged on {result.job.job.case}: {_how(result)}")
            seen[numbers[id(result.job.job)]] = result.value
            progress.case(len(seen), 0, 0, "")
    return [seen[number] for number in range(len(jobs))]
