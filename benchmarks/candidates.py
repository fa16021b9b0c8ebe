"""Candidates of a family's tiles: each compiled in a process of its own first, then timed in this one, one row each."""

from __future__ import annotations

import csv
import importlib.metadata
import itertools
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch

Table = Mapping[str, Mapping[str, Sequence[str]]]
"""By kind of dots and pass the tiles to try, as text."""


class Candidate(NamedTuple):
    """Tiles of one pass, one kind of dots and width."""

    dots: str
    width: int
    part: str
    tiles: str


def of(table: Table, dots: Sequence[str], widths: Sequence[int]) -> Iterator[Candidate]:
    """All candidates of these kinds of dots and widths."""
    for kind, width in itertools.product(dots, widths):
        for part, every in table[kind].items():
            yield from (Candidate(kind, width, part, tiles) for tiles in every)


def apart(found: Any, expected: Any) -> float:
    """The largest distance of a tensor of a result from the expected one, in its norm."""
    pairs = zip(_tensors(found), _tensors(expected), strict=True)
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def _tensors(found: Any) -> list[torch.Tensor]:
    several = found if isinstance(found, list | tuple) else [found]
    return [each.float() for each in several if each is not None]


def reason_of(error: Exception) -> str:
    """Why a candidate cannot be launched, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[-160:]}"


class Timings:
    """A CSV file of timings, one row for each candidate.

    Args:
        file: written anew.
        columns: names beside those of the card and of a candidate, such as "pieces".
    """

    def __init__(self, file: Path, columns: Sequence[str] = ()) -> None:
        self.facts = {
            "card": torch.cuda.get_device_name(),
            "capability": "{}.{}".format(*torch.cuda.get_device_capability()),
            "triton": importlib.metadata.version("triton"),
        }
        self.stream = file.open("w", encoding="utf-8", newline="")
        names = (*self.facts, *Candidate._fields, *columns, "milliseconds", "reason")
        self.rows = csv.DictWriter(self.stream, names)
        self.rows.writeheader()

    def row(self, candidate: Candidate, **found: Any) -> None:
        """Write the row of a candidate."""
        self.rows.writerow(self.facts | candidate._asdict() | found)
        self.stream.flush()

    def launchable(
        self, tried: Sequence[Candidate], compiled: Callable[[Candidate], tuple[Candidate, str]], workers: int
    ) -> list[Candidate]:
        """Compile candidates into Triton's cache; those that can be launched and are right, rows for the others.

        Args:
            tried: the candidates.
            compiled: runs one in a process of its own (an illegal access ends that alone): the candidate, and why it
                is no good, or nothing.
            workers: compilations at a time.
        """
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, fresh, max_tasks_per_child=1) as pool:
            answers = [each.result() for each in as_completed([pool.submit(compiled, each) for each in tried])]
        refused = {candidate: reason for candidate, reason in answers if reason}
        for candidate, reason in refused.items():
            self.row(candidate, reason=reason)
        print(f"{len(answers)} candidates compiled, {len(refused)} refused", flush=True)
        return [each for each in tried if each not in refused]


def timed(file: Path) -> list[dict[str, str]]:
    """The rows of a file that have a time, the fastest first."""
    with file.open(encoding="utf-8", newline="") as stream:
        return sorted(
            (row for row in csv.DictReader(stream) if row["milliseconds"]), key=lambda row: float(row["milliseconds"])
        )
