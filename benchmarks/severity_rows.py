"""Rows of severities: a CSV with one row for each kernel and dtype, from which the table is made."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from gradoracle.model.severity import Severity

BUGS = "bugs"
HALF, DTYPES = ("bfloat16", "float16"), ("bfloat16", "float16", "float32")
RED, GREEN = "red", "green"
STATED, DECLARED, ERROR, NOT_RUN = "precision stated", "breaks its declared contract", "error", "not run"
NOW = (Severity.WRONG.value, Severity.UNDECIDED.value, DECLARED, STATED, Severity.ROBUSTNESS.value, GREEN)
TOLD = (NOW[0], NOW[1], *NOW[3:])  # columns of the table; a declared contract that is broken is undecided there


@dataclass(frozen=True)
class Row:
    """One kernel in one dtype.

    Attributes:
        source: "bugs", or the name of the file that declares the kernel.
        package: of a released kernel, with its version; of a bug, where it was reported.
        cases: judged.
        before: red or green, where every violation counts and nothing is widened.
        now: one of ``NOW``, "error" or "not run".
        severity: the gravest.
        keeps: the preset that a kernel keeps where precision is lost; "none" where no preset explains it.
        law: the property that leads: of the gravest severity, the one of the highest rank.
        laws: how many are violated.
        stated: what the report says of precision.
        reason: why it was not run, or is undecided.
    """

    source: str
    kernel: str
    package: str
    dtype: str
    cases: int = 0
    before: str = ""
    now: str = NOT_RUN
    severity: str = ""
    keeps: str = ""
    law: str = ""
    laws: int = 0
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


COLUMNS = tuple(each.name for each in fields(Row))


def read(file: Path) -> list[Row]:
    """The rows of a file; none if there is no file."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as stream:
        cells = list(csv.DictReader(stream))
    kinds = {"cases": int, "laws": int, "examples": int, "seconds": float}
    return [Row(**{name: kinds.get(name, str)(value) for name, value in each.items()}) for each in cells]


def record(file: Path, rows: Sequence[Row]) -> None:
    """Write rows into a file, in place of those of the same kernels and dtypes."""
    found = {row.key: row for row in (*read(file), *rows)}
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(found[key]) for key in sorted(found))


def table(rows: Sequence[Row]) -> str:
    """Every source by dtype, in markdown, and how many released kernels are green in 16 bit with precision stated."""
    lines = [
        "| source | dtype | kernels | red before | " + " | ".join(TOLD) + " | newly red |",
        "|---|---|" + "--:|" * (len(TOLD) + 3),
    ]
    for source in dict.fromkeys(row.source for row in rows):
        for dtype in DTYPES:
            own = [row for row in rows if row.is_run and (row.source, row.dtype) == (source, dtype)]
            count = Counter(row.now for row in own)
            red = [row for row in own if row.before == RED]
            new = len([row for row in own if row.before == GREEN and row.now != GREEN])
            cells = (len(own), len(red), count[NOW[0]], count[NOW[1]] + count[DECLARED], *(count[n] for n in NOW[3:]))
            lines.append(f"| {source} | {dtype} | {' | '.join(map(str, (*cells, new)))} |")
    return "\n".join([*lines, "", sentence(row for row in rows if row.source != BUGS)])


def sentence(rows: Iterable[Row]) -> str:
    """What has become of the released kernels that were red in 16 bit."""
    kernels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.is_run and row.dtype in HALF:
            kernels.setdefault((row.source, row.kernel), []).append(row)
    red = [each for each in kernels.values() if any(row.before == RED for row in each)]
    graver = Counter(min((row.now for row in each), key=NOW.index) for each in red)
    keep = sum(
        min((row.now for row in each), key=NOW.index) == STATED and not any(row.keeps == "none" for row in each)
        for each in red
    )
    return (
        f"{graver[STATED]} of {len(red)} released kernels that were red in 16 bit without widening are green with their"
        f" precision stated ({keep} keep a preset), {graver[NOW[0]]} are wrong, {graver[NOW[1]] + graver[DECLARED]}"
        f" undecided, {graver[Severity.ROBUSTNESS.value]} accept an invalid argument; {len(kernels)} were judged."
    )


def doubtful(rows: Iterable[Row]) -> Iterator[str]:
    """What a person should read: bugs that are not wrong, and everything that is undecided or was not judged."""
    for row in rows:
        if row.now in (Severity.UNDECIDED.value, ERROR, NOT_RUN) or (row.source == BUGS and row.now != NOW[0]):
            what = f"{row.source} {row.kernel} {row.dtype}: {row.now}, {row.cases} cases, {row.law}"
            yield f"{what} {row.keeps} {row.stated} {row.reason}".rstrip()
