"""Hidden faults: mutants scaled down until bfloat16 hides them, judged by the property of the widened kernel.

    python -m benchmarks.hidden_faults [FAMILY...] [--mutants N] [--workers N] [--seconds S] [--resume]
    python -m benchmarks.hidden_faults --table [FILE...]

A mutant with a magnitude (``scaled``) is planted as value + t (mutated value - value). t is the largest power of
1/4, from 1 down to 4^-16, at which no property of the kernel as written is violated on the bfloat16 cases of a default
check; it is found by bisection with the properties that compare with the oracle, and confirmed with all others. At this
t the property of the widened kernel judges those of these cases that it falls on. A row a mutant is written into
benchmarks/results/hidden_faults.csv, in place of earlier ones of the family.

Not hidden, and in no share, is a mutant that is seen as written at 4^-16 too (what must be exactly 0 is not any more),
one whose scaled form cannot run, and one that is seen neither as written nor widened where t is 1: it is equivalent, or
other dtypes show it. Mutants that no bfloat16 case executes are not chosen.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from gradoracle.execution import environment
from gradoracle.model.errors import UsageError
from gradoracle.mutation.run import WrongKernel
from gradoracle.project import values
from gradoracle.project.shipped_names import family_names

from .rows import ROWS, read, table, write
from .run import run


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="hidden_faults", description="Mutants that bfloat16 hides, widened.")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="default: all")
    parser.add_argument("--mutants", default=100, type=int, metavar="N", help="of each family, spread over operators")
    parser.add_argument("--workers", default="auto", metavar="N|auto")
    parser.add_argument("--seconds", type=float, metavar="S", help="of searching, after which none of a family begins")
    parser.add_argument("--resume", action="store_true", help="search only mutants that FILE has no row of")
    parser.add_argument("--output", default=str(ROWS), metavar="FILE", help="rows")
    parser.add_argument("--table", nargs="*", metavar="FILE", help="only print what rows add up to")
    given = parser.parse_args(arguments)
    if given.table is None:
        for family in given.families or family_names():
            values.one_of("FAMILY", family, family_names())
            workers = values.workers(given.workers) or environment.cores()
            had = [row for row in read(Path(given.output)) if row.family == family] if given.resume else []
            say = functools.partial(print, flush=True)
            for rows in run(family, given.mutants, workers, given.seconds, say, had):
                write(Path(given.output), rows)
    files = [Path(file) for file in given.table or [given.output]]
    print(table([row for file in files for row in read(file)]))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (UsageError, WrongKernel) as error:
        print(f"hidden_faults: {error}", file=sys.stderr)
        sys.exit(2)
