"""Rows of severities: a CSV with one row for each kernel and dtype, from which the table is made."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from gradoracle.model.claims import Mark
from gradoracle.model.severity import Severity

BUGS, RELEASED = "bugs", "all released"
HALF, DTYPES = ("bfloat16", "float16"), ("bfloat16", "float16", "float32")
GREEN = "green"
WRONG_MARK = f"{Mark.FAILS.value} wrong"  # of a derivative
WRONG, UNDECIDED, ROBUSTNESS = Severity.WRONG.value, Severity.UNDECIDED.value, Severity.ROBUSTNESS.value
CRASHES, DECLARED, STATED = "crashes", "breaks its declared contract", "precision stated"
ERROR, NOT_RUN = "error", "not run"
NOW = (WRONG, CRASHES, UNDECIDED, DECLARED, STATED, ROBUSTNESS, GREEN)


@dataclass(frozen=True)
class Row:
    """One kernel in one dtype.

    Attributes:
        source: "bugs", or the name of the file that declares the kernel.
        package: of a released kernel, with its version; of a bug, where it was reported.
        cases: judged.
        now: one of ``NOW``, "error" or "not run"; "crashes": all that is wrong are crashes.
        forward, vjp, jvp, hvp: the standing of each derivative, as the first line of a report shows it.
        severity: the gravest.
        keeps: the preset that forward and gradients keep where precision is lost; "none" where none explains it.
        properties: those that have the gravest severity, the one of the highest rank first.
        stated: what a report says of their precision.
        reason: why it was not run or is undecided, or how it crashed.
    """

    source: str
    kernel: str
    package: str
    dtype: str
    cases: int = 0
    now: str = NOT_RUN
    forward: str = ""
    vjp: str = ""
    jvp: str = ""
    hvp: str = ""
    severity: str = ""
    keeps: str = ""
    properties: str = ""
    stated: str = ""
    reason: str = ""
    examples: int = 0
    seconds: float = 0.0
    commit: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What one row in a file has."""
        return self.source, self.kernel, self.dtype

    @property
    def is_run(self) -> bool:
        """Whether there is something to count."""
        return self.now in NOW

    @property
    def is_wrong_in_first_order(self) -> bool:
        """Whether the forward or the VJP is wrong, or crashes."""
        return any(each.startswith(WRONG_MARK) for each in (self.forward, self.vjp))


COLUMNS = tuple(each.name for each in fields(Row))


def read(file: Path) -> list[Row]:
    """The rows of a file; none if there is no file."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as stream:
        cells = list(csv.DictReader(stream))
    kinds = {"cases": int, "examples": int, "seconds": float}
    return [Row(**{name: kinds.get(name, str)(value) for name, value in each.items()}) for each in cells]


def record(file: Path, rows: Sequence[Row]) -> None:
    """Write rows into a file, in place of those of the same kernels and dtypes."""
    found = {row.key: row for row in (*read(file), *rows)}
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(found[key]) for key in sorted(found))


def table(rows: Sequence[Row]) -> str:
    """Every source by dtype, in markdown, and how many released kernels are wrong."""
    shown = [name for name in NOW if name != DECLARED or any(row.now == name for row in rows)]
    lines = [
        f"| source | dtype | kernels | {' | '.join(shown)} | forward or VJP wrong |",
        "|---|---|" + "--:|" * (len(shown) + 2),
    ]
    released = [row for row in rows if row.source != BUGS]
    several = [replace(row, source=RELEASED) for row in released] if len({row.source for row in released}) > 1 else []
    for source in dict.fromkeys(row.source for row in (*rows, *several)):
        for dtype in DTYPES:
            own = [row for row in (*rows, *several) if row.is_run and (row.source, row.dtype) == (source, dtype)]
            count = Counter(row.now for row in own)
            first = sum(row.is_wrong_in_first_order for row in own)
            cells = (source, dtype, len(own), *(count[name] for name in shown), first)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", sentence(released)] if released else lines)


def sentence(rows: Iterable[Row]) -> str:
    """How many released kernels are wrong, lose precision or hold; each counts as its gravest dtype."""
    kernels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.is_run:
            kernels.setdefault((row.source, row.kernel), []).append(row)
    count = Counter(min((row.now for row in each), key=NOW.index) for each in kernels.values())
    first = sum(any(row.is_wrong_in_first_order for row in each) for each in kernels.values())
    others = ", ".join(f"{count[name]} {what}" for name, what in _OTHERS.items() if count[name])
    also = f"; {others}" if others else ""
    return f"Of {len(kernels)} released kernels {count[WRONG]} are wrong, {first} in the forward or the VJP{also}."


_OTHERS = {
    CRASHES: "crash",
    UNDECIDED: "are undecided",
    DECLARED: "break the contract that they declare",
    STATED: "lose precision",
    ROBUSTNESS: "have an error in what they do not claim",
    GREEN: "hold",
}


def doubtful(rows: Iterable[Row]) -> Iterator[str]:
    """What a person should read: bugs that are not wrong, what crashes or is undecided, and what was not judged."""
    for row in rows:
        if row.now in (CRASHES, UNDECIDED, ERROR, NOT_RUN) or (row.source == BUGS and row.now != WRONG):
            what = f"{row.source} {row.kernel} {row.dtype}: {row.now}, {row.cases} cases, {row.properties}"
            yield f"{what} {row.keeps} {row.stated} {row.reason}".rstrip()
