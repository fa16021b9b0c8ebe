"""Run: the mutants of a family, in worker processes."""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradoracle.check.plan import plan, resolved
from gradoracle.execution import device, environment
from gradoracle.execution.local_pool import LocalPool
from gradoracle.model.errors import UsageError
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.plant import choose, mutants_of
from gradoracle.mutation.proofs import proofs_beside, read_proofs
from gradoracle.mutation.sources import Source, Statements, sources_of
from gradoracle.mutation.trial import Rehearsal, Stage, Unmutated
from gradoracle.project.request import Request
from gradoracle.project.target import resolve

from .rows import Row
from .scaled import scaled
from .search import Search

DTYPE = "bfloat16"


def run(
    family: str, count: int, workers: int, seconds: float | None, say: Callable[[str], None], had: Sequence[Row] = ()
) -> Iterator[list[Row]]:
    """The rows of some mutants of a family, after each search; as many searches as can begin in the time.

    Args:
        had: rows of the family from before: their mutants are not searched again.
    """
    begun = time.monotonic()
    subjects = resolved(Request(family, device="cpu", workers=0))
    jobs = [
        replace(job, properties=tuple(name for name in job.properties if subjects.properties[name].scope == "case"))
        for job in plan(subjects).jobs
        if job.case.dtype == DTYPE
    ]
    sources = sources_of(resolve(family))
    proven = read_proofs(proofs_beside(family))
    planted = {m: s for s in sources for m in mutants_of(s) if m.key not in proven and scaled(m, 0.5)}
    with tempfile.TemporaryDirectory() as folder, _pool(subjects.setup, folder, workers) as pool:
        seen = _rehearsed(jobs, pool)
        orders = _orders(planted, seen)
        chosen = choose(orders, count, 0)
        took = f"{time.monotonic() - begun:.0f} s"
        say(f"{family}: {len(chosen)} of the {len(orders)} mutants that {len(jobs)} cases execute, {took}")
        known = {}
        for stage in Stage:
            names = {name for name, prop in subjects.properties.items() if Stage.of(prop) is stage}
            known[stage] = str(Path(folder) / f"known{stage.value}")
            Path(known[stage]).write_bytes(pickle.dumps(_only(jobs, seen, names), pickle.HIGHEST_PROTOCOL))
        rows, done = list(had), {row.mutant for row in had}
        begun = time.monotonic()

        def searches() -> Iterator[Search]:
            for mutant in chosen:
                if mutant.key in done:
                    continue
                if seconds is not None and time.monotonic() - begun > seconds:
                    return
                yield Search(family, mutant, planted[mutant], orders[mutant], known)

        for result in pool.run(searches()):
            if result.value is None:
                say(f"{family}: a search failed: {result.error.strip().splitlines()[-1:] or result.crash}")
                continue
            rows.append(result.value)
            say(f"{family}: {len(rows)} of {len(chosen)}: {_told(result.value)}")
            yield sorted(rows, key=lambda row: (row.operator, row.where, row.mutant))


def _told(row: Row) -> str:
    hidden = f" at t = {row.t}" if row.t else ""
    return f"{row.mutant} {row.operator}, {row.where}: {row.result}{hidden}, {row.seconds:.0f} s"


@contextmanager
def _pool(setup: Any, folder: str, workers: int) -> Iterator[LocalPool]:
    given, limit = (setup, (), folder), environment.memory(free=True)
    with LocalPool(
        f"{__package__}.search:entry", given, count=workers, env=device.variables("cpu"), memory=limit
    ) as pool:
        yield pool


def _rehearsed(jobs: Sequence[Any], pool: LocalPool) -> list[Unmutated]:
    found: dict[int, Unmutated] = {}
    numbers = {id(job): number for number, job in enumerate(jobs)}
    for result in pool.run(Rehearsal(job) for job in jobs):
        if result.value is None:
            raise UsageError(f"the unmutated kernel cannot be judged on {result.job.job.case}")
        found[numbers[id(result.job.job)]] = result.value
    return [found[number] for number in range(len(jobs))]


def _only(jobs: Sequence[Any], seen: Sequence[Unmutated], names: set[str]) -> tuple[list[Any], list[Unmutated]]:
    """Cases and what the unmutated kernel did on them, by some properties alone."""
    own = [replace(job, properties=tuple(name for name in job.properties if name in names)) for job in jobs]
    results = [tuple(each for each in one.result.results if each.property_name in names) for one in seen]
    pairs = zip(seen, results, strict=True)
    return own, [replace(one, result=replace(one.result, results=result)) for one, result in pairs]


def _orders(planted: dict[Mutant, Source], seen: Sequence[Unmutated]) -> dict[Mutant, tuple[int, ...]]:
    """The cases that execute a mutant's line, the shortest first; mutants that no case executes are left out."""
    statements = {source.shown: Statements(source.text) for source in planted.values()}
    found = {}
    for mutant, source in planted.items():
        first, last = statements[mutant.module].span(mutant.line)
        lines = frozenset(range(first, last + 1))
        order = [n for n, each in enumerate(seen) if lines & each.lines.get(source.file, frozenset())]
        if order:
            found[mutant] = tuple(sorted(order, key=lambda n: seen[n].seconds))
    return found
