"""Scans: works that differ in one size only, N or T, for plots and for how cost grows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .rows import Line

LEAST = 2  # sizes of an entry that is in a scan


@dataclass(frozen=True)
class Scan:
    """One derivative of one family over a size.

    Attributes:
        family, derivative, dtype: of its works.
        dim: what is scanned: "N", or "T" (with M, where there is one).
        fixed: the other dims, as "D64"; B and H too where they are the same throughout.
        entries: name -> its rows by size, those without a time left out; ours first. None has a single size.
        floors: size -> milliseconds, where the card's floor is known.
    """

    family: str
    derivative: str
    dtype: str
    dim: str
    fixed: str
    entries: dict[str, dict[int, Line]]
    floors: dict[int, float]

    @property
    def title(self) -> str:
        return " ".join(word for word in (self.family, self.derivative, self.dtype, self.fixed) if word)


def dim_of(line: Line) -> str:
    """The scanned dim of a work."""
    return "N" if "N" in line.sizes else "T"


def members(line: Line) -> int:
    """How many sequences a work has: B H, or B."""
    return line.sizes.get("B", 1) * line.sizes.get("H", 1)


def scans(lines: Iterable[Line]) -> list[Scan]:
    """The scans among the rows, in their order."""
    groups: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        if line.scan:
            varied = {dim_of(line), "B", "H"} | ({"M"} if line.sizes.get("M") == line.sizes.get("T") else set())
            fixed = " ".join(f"{dim}{size}" for dim, size in line.sizes.items() if dim not in varied)
            groups.setdefault((line.family, line.derivative, line.dtype, dim_of(line), fixed), []).append(line)
    made = [
        Scan(family, derivative, dtype, dim, fixed, _entries(group), _floors(group))
        for (family, derivative, dtype, dim, fixed), group in groups.items()
    ]
    return [scan for scan in made if scan.entries]


def _entries(group: Sequence[Line]) -> dict[str, dict[int, Line]]:
    found: dict[str, dict[int, Line]] = {}
    for line in sorted(group, key=lambda each: (each.ours != "yes", each.sizes[dim_of(each)])):
        if line.best is not None:
            found.setdefault(line.entry, {})[line.sizes[dim_of(line)]] = line
    return {entry: rows for entry, rows in found.items() if len(rows) >= LEAST}


def _floors(group: Sequence[Line]) -> dict[int, float]:
    own = sorted((line for line in group if line.ours), key=lambda each: each.sizes[dim_of(each)])
    return {line.sizes[dim_of(line)]: line.floor_milliseconds for line in own if line.floor_milliseconds is not None}
