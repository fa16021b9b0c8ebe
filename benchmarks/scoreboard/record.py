"""Records of the scoreboard: the outcomes of `gradoracle mutate`, and the scoreboard's own results, line by line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradoracle.model.errors import UsageError, why
from gradoracle.model.sealed_lines import SealedLines
from gradoracle.mutation.outcome import SCORED, Fate
from gradoracle.mutation.record import FOLDER as MUTATION
from gradoracle.mutation.record import SCHEMA, Lines, fingerprint
from gradoracle.mutation.sources import Source

FOLDER = Path(".gradoracle") / "scoreboard"


@dataclass(frozen=True)
class Ours:
    """gradoracle's outcome for one mutant: its fate, the property, and the seconds until then."""

    fate: Fate
    property_name: str
    seconds: float

    @property
    def scored(self) -> bool:
        """Whether it counts in the score."""
        return self.fate in SCORED


@dataclass(frozen=True)
class Mutations:
    """A run of `gradoracle mutate`: outcomes by mutant, and how many cases the correct kernel passed (0: unknown)."""

    faults: Mapping[str, Ours]
    cases: int = 0


def mutations(family: str, folder: Path | None) -> Mutations:
    """Read the json report of a family in a folder, or the outcomes that runs in this working directory left.

    Raises:
        UsageError: there is none, or it is not a report of `gradoracle mutate`.
    """
    if folder is None:
        return _lines(family, MUTATION / f"{family}.jsonl")
    file = folder / f"{family}.json"
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{file}: {why(error)}; expected the report of "
            f"gradoracle mutate {family} --format json --output {family}.json"
        ) from None
    except ValueError as error:
        raise UsageError(f"{file} is no json: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or document.get("target") != family:
        raise UsageError(f"{file} is no report of gradoracle mutate {family}; expected one with schema {SCHEMA}")
    if document.get("options"):
        raise UsageError(f"{file} is of {' '.join(document['options'])}; expected a report of the default options")
    found = {each["mutant"]: _ours(each) for each in document["mutants"]}
    return Mutations(found, int(document.get("cases", 0)))


def _lines(family: str, file: Path) -> Mutations:
    """The outcomes of the last run in the file; a pending survivor is a survivor."""
    lines = SealedLines(file)
    try:
        entries = [fields for _, fields in lines.more()]
    except OSError:
        raise UsageError(f"{file} is missing; run gradoracle mutate {family} first, or name --records FOLDER") from None
    if lines.damage:
        raise UsageError(lines.damage[0])
    last = entries[-1]["mark"] if entries else ""
    return Mutations({entry["mutant"]: _ours(entry) for entry in entries if entry["mark"] == last})


def _ours(entry: Mapping[str, Any]) -> Ours:
    return Ours(Fate(entry["fate"]), entry["property"], float(entry["seconds"]))


def mark(sources: Sequence[Source], seed: int) -> str:
    """A fingerprint of all that an entry depends on: that of a mutant, and these files, which hold the rules."""
    own = [file.read_text(encoding="utf-8") for file in sorted(Path(__file__).parent.glob("*.py"))]
    return fingerprint(sources, (seed, "scoreboard", *own))


def kept(name: str, mark: str, folder: Path = FOLDER) -> tuple[Lines, dict[str, dict[str, Any]]]:
    """The file of results by which an interrupted run resumes, and its entries by wrong kernel."""
    lines = Lines(folder / f"{name}.jsonl", mark)
    return lines, {entry["fault"]: entry for entry in lines.entries()}
