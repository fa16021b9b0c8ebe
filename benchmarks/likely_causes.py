"""How often the likely cause that a report names is the mistake that was planted.

    python benchmarks/likely_causes.py lightning --mutants 100 --seed 11 --file rows.csv
    python benchmarks/likely_causes.py bugs --file rows.csv
    python benchmarks/likely_causes.py --table      (prints what benchmarks/results/likely_causes.csv adds up to)

A mutant of a shipped family is judged by the properties that compare forward and VJP with the truth, on four ordinary
float32 cases; a bug of tests/bugs that such a property catches is judged as ``check`` does, on eight. A row has the
mistake, the cause that is named with its evidence, and ``right``, which a person sets to yes or no: whether the
evidence says what was planted.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from gradoracle.check import minimise
from gradoracle.check.diagnosis.diagnosis import diagnose, of_results
from gradoracle.check.judge_case import examine
from gradoracle.check.plan import plan, resolved
from gradoracle.check.run import check
from gradoracle.execution.device import prepare
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.dims import parse_sizes
from gradoracle.model.job import Job
from gradoracle.model.verdict import Status
from gradoracle.mutation.cached_oracle import CachedOracle
from gradoracle.mutation.fork import Lost, answer
from gradoracle.mutation.install import install
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.operators import OPERATORS
from gradoracle.mutation.plant import choose, mutants_of
from gradoracle.mutation.sources import Source, sources_of
from gradoracle.project.request import Request
from gradoracle.project.target import resolve
from gradoracle.report.shown_fault import shown_faults

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "benchmarks" / "results" / "likely_causes.csv"
COLUMNS = ("of", "mistake", "planted", "violated", "named", "evidence", "right")
PROPERTIES = "[fv]*_matches_the_oracle"
CASES, LEAST, MOST = 4, 8, 1 << 15  # how many, their longest dim at least, the product of all at most
SECONDS = 60.0  # of a mutant
Row = tuple[str, ...]


class Bench:
    """A shipped family, its ordinary cases, and what is known of them."""

    def __init__(self, name: str, folder: str, seed: int) -> None:
        request = Request(
            name, device="cpu", dtypes=("float32",), property=PROPERTIES, examples=60, seed=seed, workers=0
        )
        self.subjects = resolved(request)
        ordinary = [job for job in plan(self.subjects).jobs if _is_ordinary(job)]
        self.jobs = sorted(ordinary, key=_size, reverse=True)[:CASES]
        self.oracle = CachedOracle(Path(folder), self.subjects.family, "auto", graphs=1 << 10)
        self.sources: list[Source] = sources_of(resolve(name, None), ())

    def judged(self) -> tuple[bool, str, str]:
        """Whether a property is violated; the cause that is named, and its evidence."""
        results = []
        for job in self.jobs:
            runner = KernelRunner(self.subjects.family, self.subjects.kernels[job.kernel])
            properties = [self.subjects.properties[property_name] for property_name in job.properties]
            results += examine(replace(job, edited=True), runner, self.oracle, properties).results
        found = diagnose(of_results(results, self.subjects.properties))
        return any(each.status is Status.VIOLATED for each in results), found.cause, found.evidence

    def tried(self, mutant: Mutant, source: Source) -> tuple[bool, str, str]:
        """The same of a mutant, in a process of its own; nothing where that dies or hangs."""

        def found() -> tuple[bool, str, str]:
            install(mutant, source)
            return self.judged()

        try:
            return answer(found, SECONDS)
        except (Lost, TimeoutError):
            return False, "", ""


def _size(job: Job) -> int:
    return math.prod(job.case.dims.values())


def _is_ordinary(job: Job) -> bool:
    case = job.case
    recipes = {draw.recipe for draw in case.draws.values()}
    return recipes <= {"normal", "index", "highest"} and max(case.dims.values()) >= LEAST and _size(job) <= MOST


def of_mutants(name: str, count: int, seed: int, operators: str) -> Iterator[Row]:
    """A row of each mutant of some operators, "" for all, that breaks a property."""
    torch.set_num_threads(1)  # a fork has no threads of its parent
    prepare("cpu")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(name, folder, seed)
        assert not bench.judged()[0], "the unmutated kernel is wrong"
        sources = {source.shown: source for source in bench.sources}
        chosen = [each for each in OPERATORS if not operators or each.name in operators.split(",")]
        mutants = [mutant for source in bench.sources for mutant in mutants_of(source, chosen)]
        for mutant in choose(mutants, count, seed):
            violated, cause, evidence = bench.tried(mutant, sources[mutant.module])
            mistake = f"{mutant.operator}: {mutant.function}:{mutant.line} {mutant.before} -> {mutant.after}"
            if violated:
                yield name, mistake, mutant.cause, "yes", cause, evidence, ""


def of_bugs() -> Iterator[Row]:
    """A row of each bug of tests/bugs that breaks a property."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    bugs = importlib.import_module("tests.bugs.test_bugs")
    minimise.SHRINK_SECONDS = 1.1
    for module, bug in bugs.CAUGHT:
        # others compare with no definition, and name no edit of it
        if not bug.property_name.endswith("_matches_the_oracle"):
            continue
        sizes = (*bugs.SMALL.get(bug.family, ()), *(f"{dim}={size}" for dim, size in bug.dims.items()))
        dims = dict(map(parse_sizes, sizes))
        where = bugs.target(module, bug.wrong)
        found = shown_faults(
            check(
                Request(where, bug.family or None, "cpu", property=bug.property_name, dims=dims, examples=8, workers=0)
            )
        )
        if found:
            lead = found[0].diagnosis
            yield "bugs", f"{bug.name} ({bug.cites})", bug.cause, "yes", lead.cause, lead.evidence, ""


def table(rows: list[dict[str, str]]) -> Iterator[str]:
    """What rows add up to, as lines of markdown."""
    yield "| of | violated | named | right | hit rate |"
    yield "|---|--:|--:|--:|--:|"
    names = [*dict.fromkeys(row["of"] for row in rows), "all"]
    for name in names:
        own = [row for row in rows if name in (row["of"], "all")]
        named = [row for row in own if row["named"]]
        right = Counter(row["right"] for row in named)["yes"]
        rate = f"{100 * right / len(named):.0f} %" if named else "-"
        yield f"| {name} | {len(own)} | {len(named)} | {right} | {rate} |"


def main() -> None:
    """Write rows, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("of", nargs="?", help="a shipped family, or bugs")
    parser.add_argument("--mutants", type=int, default=100)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--operators", default="", help="separated by commas; by default all")
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.table:
        with asked.file.open(newline="") as file:
            print("\n".join(table(list(csv.DictReader(file)))))
        return
    with asked.file.open("a", newline="") as file:
        rows = csv.writer(file)
        if file.tell() == 0:
            rows.writerow(COLUMNS)
        for row in (
            of_bugs() if asked.of == "bugs" else of_mutants(asked.of, asked.mutants, asked.seed, asked.operators)
        ):
            rows.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
