"""Speed of the shipped kernels and of their peers on this GPU, for benchmarks/results/kernels.csv and its page.

    python benchmarks/kernels.py                       (times everything; rows of other works in the file are kept)
    python benchmarks/kernels.py sdpa --only backward --no-scans --seconds 60
    python benchmarks/kernels.py sdpa --missing        (what a run that was cut has left)
    python benchmarks/kernels.py --errors              (only errors, of the rows that the file has; times stay)
    python benchmarks/kernels.py --errors --missing    (what a run that was cut has left of them)
    python benchmarks/kernels.py --write-page          (writes docs/background/speed.md and its plots from the file)

A row is one entry, ours or a peer's, of one work: median and quartiles of at least 50 calls (of fewer, from 3 on, where
one takes more than 0.1 s), the same of a CUDA graph where a call takes less than 0.5 ms, peak memory, the floor that
the card's peak rates set, and what the run ran on. A peer that is not installed or cannot do the work has a row that
says so. Rows are written as they are timed: what is cut leaves what it has.

Then the results of works of tables are compared with float64: the error of each row, on the timed inputs and, for sdpa
and lse, on logits eight times larger.

Everything that compiles is compiled by `--workers` processes first. With `--seconds` no entry begins after that time.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from kernel_speed.rows import RESULTS

from gradoracle.model.errors import UsageError


def main(words: list[str]) -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("families", nargs="*", metavar="FAMILY", help="default: all")
    options.add_argument("--only", default="", metavar="TEXT", help="works that contain it")
    options.add_argument("--no-scans", action="store_true", help="leave out the works over N and T")
    options.add_argument("--missing", action="store_true", help="only what the file has no row of, of these kernels")
    options.add_argument("--errors", action="store_true", help="time nothing; only compare results with float64")
    options.add_argument("--seconds", type=float, metavar="S", help="after which no entry begins")
    options.add_argument("--patience", type=float, default=120.0, metavar="S", help="after which an entry is stopped")
    options.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="compilations at a time; 0: none before"
    )
    options.add_argument("--compile-seconds", type=float, default=120.0, metavar="S", help="of compiling before")
    options.add_argument("--commit", default="", help="of the code, where it is no git checkout")
    options.add_argument("--file", type=Path, default=RESULTS, help="rows")
    options.add_argument("--write-page", action="store_true", help="only write the page from the rows")
    given = options.parse_args(words)
    if given.write_page:
        from kernel_speed.page import write

        write(given.file)
        return
    from kernel_speed.run import Asked, run

    run(
        Asked(
            families=tuple(given.families),
            file=given.file,
            only=given.only,
            seconds=given.seconds,
            patience=given.patience,
            workers=given.workers,
            compile_seconds=given.compile_seconds,
            commit=given.commit,
            scans=not given.no_scans,
            missing=given.missing,
            errors=given.errors,
        )
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as mistake:
        sys.exit(f"kernels.py: {mistake}")
