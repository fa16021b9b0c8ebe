"""Record: outcomes on disk, a sealed line each, so that an interrupted run resumes; and an earlier report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradoracle
from gradoracle.model.errors import UsageError, why
from gradoracle.model.sealed_lines import SealedLines
from gradoracle.model.serialize import to_plain
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.outcome import Fate, MutantResult
from gradoracle.mutation.sources import Source

FORMAT = 2
SCHEMA = "gradoracle-mutation/2"  # of reports; raised when a field is renamed or removed, or changes its meaning
FOLDER = Path(".gradoracle") / "mutation"


def fingerprint(sources: Sequence[Source], settings: Sequence[Any]) -> str:
    """Of everything that an outcome depends on: sources, settings, and gradoracle with its properties."""
    digest = hashlib.sha256(repr([FORMAT, gradoracle.__version__, *settings]).encode())
    for source in sources:
        digest.update(f"{source.shown}\0{source.text}\0".encode())
    roots = [Path(str(gradoracle.__file__)).parent]
    judges = __import__("gradoracle.properties", fromlist=["__path__"])
    roots += [Path(folder) for folder in judges.__path__]
    for file in sorted({file for root in roots for file in root.rglob("*.py")}):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


class Lines:
    """Entries in a file, a sealed line each.

    Args:
        path: the file; its folder is made if missing.
        mark: a fingerprint of everything that entries depend on; those under another are ignored.
    """

    def __init__(self, path: Path, mark: str) -> None:
        self.path, self._mark = path, mark
        self._file = SealedLines(path)

    def entries(self) -> Iterator[dict[str, Any]]:
        """Those of this mark, in order; lines that are damaged are left out."""
        with suppress(OSError):
            yield from (fields for _, fields in SealedLines(self.path).more() if fields.get("mark") == self._mark)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append one entry. Raises OSError."""
        self._file.add({"mark": self._mark, **entry})

    def forget(self) -> None:
        """Remove all entries."""
        self.path.unlink(missing_ok=True)
        self._file = SealedLines(self.path)


class MutationRecord:
    """The outcomes of one target, lines of json under ``.gradoracle/mutation`` of the working directory.

    Args:
        name: of the target, after which the file is named.
        mark: the ``fingerprint``; outcomes under another are ignored.
    """

    def __init__(self, name: str, mark: str, folder: Path = FOLDER) -> None:
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        self._lines = Lines(folder / f"{safe}.jsonl", mark)
        self.path = self._lines.path

    def known(self, mutants: Sequence[Mutant], pending: bool = False) -> dict[str, MutantResult]:
        """Outcomes of an earlier run with the same fingerprint, by key: the final or the ``pending`` ones."""
        by_key = {mutant.key: mutant for mutant in mutants}
        found: dict[str, tuple[bool, MutantResult]] = {}
        for entry in self._lines.entries():
            with suppress(ValueError, KeyError, TypeError):  # of another format
                mutant = by_key.get(entry["mutant"])
                if mutant is not None:
                    found[mutant.key] = (bool(entry["pending"]), _outcome(mutant, entry))
        return {key: outcome for key, (waits, outcome) in found.items() if waits == pending}

    def add(self, outcome: MutantResult, pending: bool = False) -> None:
        """Append one outcome; the compiled code of a ``pending`` survivor is yet to be compared. Raises OSError."""
        self._lines.add({"pending": pending, **entry(outcome)})

    def forget(self) -> None:
        """Remove all outcomes."""
        self._lines.forget()


def entry(outcome: MutantResult) -> dict[str, Any]:
    """An outcome as plain values, without sources."""
    fields = to_plain(outcome)
    mutant = fields.pop("mutant")
    place = {name: mutant[name] for name in ("module", "operator", "function", "line", "before", "after", "cause")}
    return {"mutant": outcome.mutant.key, **place, **fields}


def _outcome(mutant: Mutant, found: dict[str, Any]) -> MutantResult:
    names = ("case", "tried", "covering", "seconds", "reason", "diagnosis", "widened")
    own = {name: found[name] for name in names}
    return MutantResult(mutant, Fate(found["fate"]), found["property"], tuple(found["properties"]), **own)


@dataclass(frozen=True)
class Earlier:
    """An earlier report of ``gradoracle mutate``.

    Attributes:
        name: of its file.
        fates: by the key of the mutant.
        options: the words of its options.
    """

    name: str
    fates: Mapping[str, Fate]
    options: tuple[str, ...] = ()

    def same(self, outcomes: Sequence[MutantResult]) -> list[MutantResult]:
        """The outcomes of mutants that it tried too."""
        return [each for each in outcomes if each.mutant.key in self.fates and each.fate is not Fate.NOT_RUN]

    def turned(self, outcomes: Sequence[MutantResult], before: Fate, now: Fate) -> list[MutantResult]:
        """The outcomes of mutants that had one fate and have another now."""
        return [o for o in self.same(outcomes) if o.fate is now and self.fates[o.mutant.key] is before]


def read_earlier(file: Path) -> Earlier:
    """Read a report that ``gradoracle mutate --format json`` wrote.

    Raises:
        UsageError: the file cannot be read, or holds no such report.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise ValueError
        fates = {each["mutant"]: Fate(each["fate"]) for each in document["mutants"]}
        options = tuple(document.get("options", ()))
    except OSError as error:
        raise UsageError(f"--since {file} cannot be read: {why(error)}") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"--since {file}: expected a report of gradoracle mutate --format json, {SCHEMA}") from None
    return Earlier(file.name, {key: fate for key, fate in fates.items() if fate is not Fate.NOT_RUN}, options)
