"""Pages in markdown as data: the rows of their tables, and the one line that has a text."""

from __future__ import annotations


def table_rows(page: str, head: str) -> list[dict[str, str]]:
    """The rows of the tables whose first column has this head: each cell by the head of its column."""
    found: list[dict[str, str]] = []
    heads: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("|") else []
        if not cells or not heads:
            heads = cells
        elif heads[0] == head and not all(set(cell) <= {"-", ":"} for cell in cells):
            found.append(dict(zip(heads, cells, strict=True)))
    return found


def line_with(page: str, part: str) -> str:
    """The line that has this text, of which there is one."""
    (found,) = [line for line in page.splitlines() if part in line]
    return found
