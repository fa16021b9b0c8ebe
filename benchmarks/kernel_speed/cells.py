"""Cells: what the tables of the page have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .rows import Line


def named(line: Line) -> str:
    """A work without its family and without what is said in parentheses."""
    return " ".join((line.derivative.partition(" (")[0], line.work.partition(f"{line.derivative} ")[2]))


def tabled(lines: Sequence[Line]) -> list[Line]:
    """The rows of tables: those of works that are not of scans alone."""
    return [line for line in lines if line.scan != "only"]


def cell(said: str) -> str:
    """Text that does not end a table's cell."""
    return said.replace("|", "/").replace("<", "&lt;")


def reasons(title: str, lines: Iterable[tuple[Line, str]]) -> Iterator[str]:
    """A list of why something is missing, each reason of an entry once; nothing where none is."""
    found: dict[tuple[str, str], list[str]] = {}
    for line, reason in lines:
        found.setdefault((line.entry, reason), []).append(named(line))
    if found:
        yield f"{title}:\n"
        for (entry, reason), works in found.items():
            where = works[0] if len(works) == 1 else f"{len(works)} works, the first: {works[0]}"
            yield f"- {entry}: {cell(reason)} ({where})"
        yield ""
