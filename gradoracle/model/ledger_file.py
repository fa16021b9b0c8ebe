"""Ledger file: the records of runs as lines of JSON, appended as they come and sealed one by one.

The seal of a line is a digest of its content and of the seal before it. So a line that was cut, changed or removed is
found and named, and every other line still counts. It shows damage; it does not show who wrote the file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
)
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
_UNCOUNTED = "what it held is not counted"
_SEAL = re.compile(r',"seal":"([0-9a-f]{32})"}$')


def line_of(record: Header | Record, before: str) -> tuple[str, str]:
    """The line of a record and its seal, given the seal of the line before it; "" of the first."""
    content = json.dumps(fields_of(record), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    seal = _sealed(content, before)
    return f'{content[:-1]},"seal":"{seal}"}}', seal


def _sealed(content: str, before: str) -> str:
    return hashlib.sha256(f"{before}{content}".encode()).hexdigest()[:32]


def text_of(sections: Iterable[Section]) -> str:
    """The text of a ledger's file."""
    lines, seal = [], ""
    for section in sections:
        for record in (section.header, *section.records):
            line, seal = line_of(record, seal)
            lines.append(f"{line}\n")
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
        self._known = read(path, is_resumed=True) if exists else []
        self._seal = ""
        try:
            self._file: BinaryIO = path.open("r+b" if exists else "wb")
            if exists:
                self._continue()
        except OSError as error:
            raise UsageError(f"--ledger {path} cannot be written: {why(error)}") from None

    def begin(self, header: Header) -> Ledger:
        """Begin a run, or go on with it: the ledger with what the file has of it.

        Raises:
            UsageError: the file has another run of this target.
        """
        new = Ledger([Section(header, file="this command")])
        same = [each for each in self._known if each.header.target == header.target]
        known = next((each for each in same if is_of(each.header, header)), same[0] if same else None)
        if known is not None:
            new = known | new
            self._known.remove(known)  # another run of the target may have other settings
        self.add(header)
        return new

    def add(self, record: Header | Record) -> None:
        """Append a line; the first that cannot be written is the last that is tried."""
        if self.lost:
            return
        line, self._seal = line_of(record, self._seal)
        try:
            self._file.write(f"{line}\n".encode())
            self._file.flush()
        except OSError as error:
            self.lost = f"--ledger {self.path} cannot be written: {why(error)}"
            tell(f"{self.lost}; the run goes on without it")

    def close(self) -> None:
        """The file is whole; that it holds what was written is checked."""
        if not self.lost:
            self._file.close()
            last = None
            for last in _lines(self.path):
                if last.seal != last.expected:
                    break
            if last is None or (last.seal, last.expected) != (self._seal, self._seal):
                self.lost = f"--ledger {self.path} was changed by another program while it was written"

    def _continue(self) -> None:
        """Go on after the last whole line; a cut one is no line."""
        for line in _lines(self.path):
            if line.is_cut:
                self._file.truncate(line.start)
                break
            self._seal = line.seal or self._seal
        self._file.seek(0, 2)


class _Line:
    """A line of a file: its number, where it starts, its content without the seal, its seal and that it should have."""

    def __init__(self, number: int, start: int, raw: bytes, before: str) -> None:
        self.number, self.start, self.is_cut = number, start, not raw.endswith(b"\n")
        text = raw.decode("utf-8", "replace").rstrip("\n")
        found = _SEAL.search(text)
        self.content = f"{text[: found.start()]}}}" if found else text
        self.seal = found[1] if found and not self.is_cut else ""
        self.expected = _sealed(self.content, before)


def _lines(path: Path) -> Iterator[_Line]:
    before, start = "", 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = _Line(number, start, raw, before)
            yield line
            start += len(raw)
            before = line.seal or before


class LedgerTail:
    """A ledger's file, read while it is written.

    Attributes:
        ledgers: what was read so far, one for each header.
        damage: what could not be read, a sentence each.
        cut: that its last line is cut, a sentence; "" where it is whole.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._start, self._number, self._seal = path, 0, 0, ""
        self.ledgers: list[Ledger] = []
        self.damage: list[str] = []
        self.cut = ""
        self.is_sealed = False  # whether any line has a seal

    def more(self) -> list[Record]:
        """The records of the lines that were added since.

        Raises:
            OSError: it cannot be read.
            Unreadable, ValueError: it is no ledger of this schema.
        """
        found: list[Record] = []
        with self._path.open("rb") as file:
            file.seek(self._start)
            for raw in file:
                line = _Line(self._number + 1, self._start, raw, self._seal)
                self.cut = f"{self._path}, line {line.number} is cut: {_UNCOUNTED}" if line.is_cut else ""
                if line.is_cut:
                    break
                self._start, self._number, self._seal = self._start + len(raw), line.number, line.seal or self._seal
                self.is_sealed = self.is_sealed or bool(line.seal)
                if line.seal == line.expected:
                    found += self._taken(json.loads(line.content), line.number)
                else:
                    what = "is not what was written, or lines before it are gone"
                    self.damage.append(f"{self._path}, line {line.number} {what}: {_UNCOUNTED}")
        return found

    def _taken(self, fields: dict[str, Any], number: int) -> list[Record]:
        """Add the record of a line to the last ledger, or begin another."""
        record = record_of(fields, number)
        if isinstance(record, Header):
            self.ledgers.append(Ledger([Section(record, file=str(self._path))]))
        elif self.ledgers:
            self.ledgers[-1].add(record)
            return [record]
        else:
            self.damage.append(f"{self._path}, line {number} comes before any header: {_UNCOUNTED}")
        return []


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


def read(path: Path, *, is_resumed: bool = False) -> list[Ledger]:
    """The runs in a file, each with what is damaged; one that was resumed is one run.

    Args:
        path: the file.
        is_resumed: whether a last line that is cut is removed, and no damage.

    Raises:
        UsageError: it cannot be read, or is no ledger of this schema.
    """
    tail = LedgerTail(path)
    try:
        tail.more()
    except OSError as error:
        raise UsageError(f"{path}: {why(error)}; {EXPECTED}") from None
    except (Unreadable, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}; {EXPECTED}") from None
    damage = [*tail.damage, *([tail.cut] if tail.cut and not is_resumed else ())]
    if not tail.ledgers:
        raise UsageError(f"{damage[0] if tail.is_sealed else f'{path} holds no ledger'}; {EXPECTED}")
    tail.ledgers[-1].damage += damage
    return runs(tail.ledgers)


def runs(ledgers: Sequence[Ledger]) -> list[Ledger]:
    """The ledgers of each run added up, in the order in which runs first occur."""
    found: list[Ledger] = []
    for each in ledgers:
        place = next((n for n, own in enumerate(found) if is_of(own.header, each.header)), None)
        if place is None:
            found.append(each)
        else:
            found[place] |= each
    return found


def read_all(paths: Sequence[Path]) -> list[Ledger]:
    """The runs in several files, each with all its parts.

    Raises:
        UsageError: a file is no ledger, or two have different runs of one target.
    """
    found: list[Ledger] = []
    for path in paths:
        before = len(found)
        for each in read(path):
            same = [n for n, own in enumerate(found[:before]) if own.header.target == each.header.target]
            place = next((n for n in same if is_of(found[n].header, each.header)), same[0] if same else None)
            if place is None:
                found.append(each)
            else:
                found[place] |= each
    return found
