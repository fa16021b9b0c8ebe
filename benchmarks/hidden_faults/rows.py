"""Rows: what became of each mutant, in a CSV; and the table that they add up to."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

ROWS = Path(__file__).resolve().parent.parent / "results" / "hidden_faults.csv"
CAUGHT, MISSED, UNSEEN = "caught", "missed", "unseen unscaled"
SEEN, UNSCALED = "never hidden", "cannot be scaled"


@dataclass(frozen=True)
class Row:
    """One mutant.

    Attributes:
        t: the largest at which it is hidden; "" where it is at none.
        result: CAUGHT; MISSED; UNSEEN: seen neither as written nor widened where t is 1; SEEN, UNSCALED: not hidden.
        seen_by: the property as written that is violated at 4 t, or at the smallest t; of UNSCALED what it raised.
        caught_by: the property that is violated at t when widened.
        widened_from: where missed, the smallest t at which it is seen widened; "" for none.
    """

    family: str
    mutant: str
    operator: str
    where: str
    before: str
    after: str
    result: str
    t: str = ""
    seen_by: str = ""
    caught_by: str = ""
    case: str = ""
    widened_from: str = ""
    seconds: float = 0.0


def table(rows: Sequence[Row]) -> str:
    """The shares caught, by family and by operator, and every miss."""
    lines = ["| mutants | hidden | caught | share | not hidden |", "|---|--:|--:|--:|---|"]
    for name in dict.fromkeys(row.family for row in rows):
        lines.append(_share(name, [row for row in rows if row.family == name]))
    for name in sorted({row.operator for row in rows}):
        lines.append(_share(name, [row for row in rows if row.operator == name]))
    lines += [_share("all", rows), ""]
    for row in rows:
        if row.result in (MISSED, UNSEEN):
            seen = f"seen widened from t = {row.widened_from}" if row.widened_from else "not seen widened where t is 1"
            by = f"; as written by {row.seen_by} at 4 t" if row.seen_by else ""
            code = f"`{row.before}` becomes `{row.after}`"
            lines.append(f"- {row.family} `{row.mutant}` {row.operator}, {row.where}: {code}; t = {row.t}, {seen}{by}")
    return "\n".join(lines) + "\n"


def _share(name: str, rows: Sequence[Row]) -> str:
    counts = Counter(row.result for row in rows)
    hidden = counts[CAUGHT] + counts[MISSED]
    others = ", ".join(f"{counts[each]} {each}" for each in (UNSEEN, SEEN, UNSCALED) if counts[each])
    share = f"{counts[CAUGHT] / hidden:.1%}" if hidden else ""
    return f"| {name} | {hidden} | {counts[CAUGHT]} | {share} | {others} |"


def read(file: Path) -> list[Row]:
    """The rows of a file; none where there is no file."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as stream:
        return [_row(cells) for cells in csv.DictReader(stream)]


def _row(cells: Mapping[str, Any]) -> Row:
    return Row(**{**cells, "seconds": float(cells["seconds"])})


def write(file: Path, rows: Sequence[Row]) -> None:
    """Write rows, in place of those of the same families."""
    families = {row.family for row in rows}
    kept = [row for row in read(file) if row.family not in families]
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in [*kept, *rows])
