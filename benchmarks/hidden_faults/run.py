"""Run: the mutants of a family, in worker processes."""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradoracle.check.plan import resolved
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.plant import choose, mutants_of
from gradoracle.mutation.proofs import proofs_beside, read_proofs
from gradoracle.mutation.run import cases_of, pool, rehearsed
from gradoracle.mutation.sources import Source, Statements, sources_of
from gradoracle.mutation.trial import Stage, Unmutated
from gradoracle.project.request import Request, Silent
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
    jobs = [job for job in cases_of(subjects) if job.case.dtype == DTYPE]
    sources = sources_of(resolve(family))
    proven = read_proofs(proofs_beside(family))
    planted = {m: s for s in sources for m in mutants_of(s) if m.key not in proven and scaled(m, 0.5)}
    entry = f"{__package__}.search:entry"
    with tempfile.TemporaryDirectory() as folder, pool(entry, subjects.setup, (), folder, workers) as processes:
        seen = rehearsed(jobs, processes, Silent())
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

        for result in processes.run(searches()):
            if result.value is None:
                say(f"{family}: a search failed: {result.error.strip().splitlines()[-1:] or result.crash}")
                continue
            rows.append(result.value)
            say(f"{family}: {len(rows)} of {len(chosen)}: {_told(result.value)}")
            yield sorted(rows, key=lambda row: (row.operator, row.where, row.mutant))


def _told(row: Row) -> str:
    hidden = f" at t = {row.t}" if row.t else ""
    return f"{row.mutant} {row.operator}, {row.where}: {row.result}{hidden}, {row.seconds:.0f} s"


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
        lines = statements[mutant.module].lines(mutant.line)
        order = [n for n, each in enumerate(seen) if each.runs(source, lines)]
        if order:
            found[mutant] = tuple(sorted(order, key=lambda n: seen[n].seconds))
    return found
