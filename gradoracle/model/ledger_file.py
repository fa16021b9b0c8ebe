"""Ledger file: the records of runs as sealed lines, appended as they come (``sealed_lines``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from gradoracle.model.errors import UsageError, tell, why
from gradoracle.model.ledger import (
    CaseRecord,
    EndRecord,
    Header,
    JudgeRecord,
    Ledger,
    Record,
    Section,
    SeverityRecord,
    SmallerRecord,
    is_of,
    of_target,
)
from gradoracle.model.sealed_lines import SealedLines, sealed
from gradoracle.model.serialize import Unreadable, from_plain, to_brief

SCHEMA = "gradoracle-ledger/1"  # raised when a field is renamed or removed, or changes its meaning
EXPECTED = "expected a ledger, which gradoracle check TARGET --ledger FILE writes"
KINDS: Mapping[str, type[Header] | type[Record]] = {
    "header": Header,
    "case": CaseRecord,
    "smaller": SmallerRecord,
    "severity": SeverityRecord,
    "judge": JudgeRecord,
    "end": EndRecord,
}
"""What a line may be, by its field ``record``."""
_NAMES = {kind: name for name, kind in KINDS.items()}


def record_of(fields: Mapping[str, Any], number: int = 1) -> Header | Record:
    """The record that a line holds; ``number``: of the line, for messages. Raises Unreadable."""
    kind = KINDS.get(fields.get("record", ""))
    if kind is None:
        raise Unreadable(f"line {number} is a record {fields.get('record')!r}; expected one of {', '.join(KINDS)}")
    if kind is Header and fields.get("schema") != SCHEMA:
        raise Unreadable(f"its schema is {fields.get('schema')!r}; expected {SCHEMA!r}")
    found: Header | Record = from_plain(kind, fields, f"line {number}")
    return found


def fields_of(record: Header | Record) -> dict[str, Any]:
    """What the line of a record holds, but for the seal."""
    fields = {"record": _NAMES[type(record)]} | ({"schema": SCHEMA} if isinstance(record, Header) else {})
    return fields | to_brief(record)


def text_of(sections: Iterable[Section]) -> str:
    """The text of a ledger's file."""
    lines, seal = [], ""
    for section in sections:
        for record in (section.header, *section.records):
            line, seal = sealed(fields_of(record), seal)
            lines.append(line)
    return "".join(lines)


class LedgerFile:
    """A ledger that is written while its run goes on.

    Args:
        path: the file.
        resumes: whether to go on with what it has.

    Attributes:
        lost: why it could not be written, a sentence; "" where it could.

    Raises:
        UsageError: the file exists and is not resumed, is no ledger, or cannot be written.
    """

    def __init__(self, path: Path, *, resumes: bool = False) -> None:
        self.path, self.lost = path, ""
        exists = path.exists() and path.stat().st_size > 0
        if exists and not resumes:
            raise UsageError(f"--ledger {path} exists already; expected a new file, or --resume to go on with it")
        self._known, self._seal = [], ""
        try:
            self._file: BinaryIO = path.open("r+b" if exists else "wb")
            if exists:
                tail = LedgerTail(path)
                self._known = tail.whole(is_resumed=True)
                self._seal = tail.lines.seal
                self._file.truncate(tail.lines.end)
                self._file.seek(tail.lines.end)
        except OSError as error:
            raise UsageError(f"--ledger {path} cannot be written: {why(error)}") from None

    def begin(self, header: Header) -> Ledger:
        """Begin a run, or go on with it: the ledger with what the file has of it.

        Raises:
            UsageError: the file has another run of this target.
        """
        new = Ledger([Section(header, file="this command")])
        known = of_target(self._known, header)
        if known is not None:
            new = known | new
            self._known.remove(known)  # another run of the target may have other settings
        self.add(header)
        return new

    def add(self, record: Header | Record) -> None:
        """Append a line; the first that cannot be written is the last that is tried."""
        if self.lost:
            return
        line, self._seal = sealed(fields_of(record), self._seal)
        try:
            self._file.write(line.encode())
            self._file.flush()
        except OSError as error:
            self.lost = f"--ledger {self.path} cannot be written: {why(error)}"
            tell(f"{self.lost}; the run goes on without it")

    def close(self) -> None:
        """The file is whole; that it holds what was written is checked."""
        if self.lost:
            return
        self._file.close()
        written = SealedLines(self.path)
        try:
            written.more()
        except OSError as error:
            self.lost = f"--ledger {self.path} cannot be read again: {why(error)}"
            return
        if written.seal != self._seal or written.cut or written.damage:
            self.lost = f"--ledger {self.path} is not what was written: another program changed it"


class LedgerTail:
    """A ledger's file, read while it is written.

    Attributes:
        lines: the file.
        ledgers: what was read so far, one for each header.
    """

    def __init__(self, path: Path) -> None:
        self.lines = SealedLines(path)
        self.ledgers: list[Ledger] = []

    def more(self) -> list[Record]:
        """The records that were added since.

        Raises:
            OSError: it cannot be read.
            Unreadable: it is no ledger of this schema.
        """
        found: list[Record] = []
        for number, fields in self.lines.more():
            record = record_of(fields, number)
            if isinstance(record, Header):
                self.ledgers.append(Ledger([Section(record, file=str(self.lines.path))]))
            elif self.ledgers:
                self.ledgers[-1].add(record)
                found.append(record)
            else:
                self.lines.damage.append(f"{self.lines.path}, line {number} comes before any header")
        return found

    def whole(self, *, is_resumed: bool = False) -> list[Ledger]:
        """The runs in the file, each with what is damaged; one that was resumed is one run.

        Args:
            is_resumed: whether a last line that is cut will be removed, and is no damage.

        Raises:
            UsageError: it cannot be read, or is no ledger of this schema.
        """
        path = self.lines.path
        try:
            self.more()
        except OSError as error:
            raise UsageError(f"{path}: {why(error)}; {EXPECTED}") from None
        except (Unreadable, ValueError) as error:
            raise UsageError(f"{path} cannot be read: {error}; {EXPECTED}") from None
        damage = [*self.lines.damage, *([self.lines.cut] if self.lines.cut and not is_resumed else ())]
        if not self.ledgers:
            raise UsageError(f"{damage[0] if self.lines.seal else f'{path} holds no ledger'}; {EXPECTED}")
        self.ledgers[-1].damage += damage
        return runs(self.ledgers)


def read(path: Path) -> list[Ledger]:
    """The runs in a file; raises UsageError as ``LedgerTail.whole``."""
    return LedgerTail(path).whole()


def runs(ledgers: Sequence[Ledger]) -> list[Ledger]:
    """The ledgers of each run added up, in the order in which runs first occur."""
    found: list[Ledger] = []
    for each in ledgers:
        known = next((own for own in found if is_of(own.header, each.header)), None)
        if known is None:
            found.append(each)
        else:
            known.take(each)
    return found


def read_all(paths: Sequence[Path]) -> list[Ledger]:
    """The runs in several files, each with all its parts.

    Raises:
        UsageError: a file is no ledger, or two have different runs of one target.
    """
    found: list[Ledger] = []
    for path in paths:
        before = list(found)
        for each in read(path):
            known = of_target(before, each.header)
            if known is None:
                found.append(each)
            else:
                known.take(each)
    return found
