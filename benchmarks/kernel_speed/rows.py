"""Rows: benchmarks/results/kernels.csv, a row for each entry of each work, with the facts of the run that timed it."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results" / "kernels.csv"


@dataclass(frozen=True)
class Line:
    """One entry of one work as it was timed; empty where something does not apply.

    Attributes:
        date, card, driver, cuda, torch, triton, python, commit: of the run; packages: versions of peers.
        switches: PyTorch's that change what peers compute, in the run; an entry that turns one on says so.
        kernels: hash of the family's kernels (``content``).
        family, work, derivative, dtype, dims: as in ``KernelRow``; dims as "B=4 H=16 ...".
        entry: ours or a peer; ``ours`` is "yes" or empty.
        scan: "both" where the work is a point of a plot over N or T too, "only" where it is that alone.
        milliseconds, lower, upper, count: median, quartiles and number of timed calls.
        graph_milliseconds, graph_lower, graph_upper, graph_count: the same of a CUDA graph.
        no_graph: why a short call has none.
        peak_bytes: allocated beyond the inputs, of set-up and call.
        operations, moved: floating-point operations and bytes of the work.
        arithmetic: what the entry multiplies in.
        floor_milliseconds, floor_by: of the card, by "dots" or "memory".
        missing: why there is no time.
        error_rms, error_largest, error_of: of the result on the timed inputs, of the tensor that is worst (``Error``).
        sharp: inputs that are not timed, by what they differ; sharp_rms, sharp_largest, sharp_of: the errors there.
        errors_missing: why some errors are missing; ``errors_on``: date, card and versions of the run that compared.
    """

    family: str
    work: str
    derivative: str
    dtype: str
    dims: str
    entry: str
    ours: str
    scan: str = ""
    milliseconds: float | None = None
    lower: float | None = None
    upper: float | None = None
    count: int | None = None
    graph_milliseconds: float | None = None
    graph_lower: float | None = None
    graph_upper: float | None = None
    graph_count: int | None = None
    no_graph: str = ""
    peak_bytes: int | None = None
    operations: float = 0.0
    moved: float = 0.0
    arithmetic: str = ""
    floor_milliseconds: float | None = None
    floor_by: str = ""
    missing: str = ""
    error_rms: float | None = None
    error_largest: float | None = None
    error_of: str = ""
    sharp: str = ""
    sharp_rms: float | None = None
    sharp_largest: float | None = None
    sharp_of: str = ""
    errors_missing: str = ""
    errors_on: str = ""
    kernels: str = ""
    date: str = ""
    card: str = ""
    driver: str = ""
    cuda: str = ""
    torch: str = ""
    triton: str = ""
    python: str = ""
    commit: str = ""
    packages: str = ""
    switches: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Which row of the file it is: a later one of the same place replaces it."""
        return self.work, self.entry

    @property
    def sizes(self) -> dict[str, int]:
        """The dims as numbers."""
        return {dim: int(size) for dim, _, size in (word.partition("=") for word in self.dims.split())}

    @property
    def best(self) -> float | None:
        """Milliseconds without the host's part where that is known: of the graph, else of calls."""
        return self.milliseconds if self.graph_milliseconds is None else self.graph_milliseconds

    @property
    def is_compared(self) -> bool:
        """Whether its result was compared with the truth, or that was tried."""
        return self.error_rms is not None or bool(self.errors_missing)


COLUMNS = tuple(each.name for each in fields(Line))
_NUMBERS = {each.name: float if "float" in str(each.type) else int for each in fields(Line) if each.type != "str"}


def read(file: Path) -> list[Line]:
    """The rows of a file, each place once, as it was written last; none if the file does not exist."""
    return list({line.place: line for line in written(file)}.values())


def written(file: Path) -> list[Line]:
    """All that was written to a file, in that order."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as stream:
        return [_line(row) for row in csv.DictReader(stream)]


def keep(file: Path, without: Collection[tuple[str, str]]) -> None:
    """Write a file anew with its header, and of its rows those of other places."""
    others = [line for line in read(file) if line.place not in without]
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.DictWriter(stream, COLUMNS, lineterminator="\n").writeheader()
    append(file, others)


def append(file: Path, lines: Iterable[Line]) -> None:
    """Add rows at the end, so that a run that is cut leaves what it has."""
    with file.open("a", encoding="utf-8", newline="") as stream:
        rows = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        rows.writerows({name: _text(value) for name, value in asdict(line).items()} for line in lines)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def _line(row: Mapping[str, str]) -> Line:
    read: dict[str, Any] = {name: row.get(name, "") for name in COLUMNS}
    for name, number in _NUMBERS.items():
        read[name] = number(read[name]) if read[name] else None
    return Line(**read | {name: read[name] or 0.0 for name in ("operations", "moved")})
