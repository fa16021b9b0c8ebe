"""Baseline: the ledger of a project's kernels in a file, to compare with where the base cannot be built.

A file that is missing, damaged, of something else or of another schema is never taken for a baseline: a sentence says
what is wrong with it, and the gate is inconclusive. Errors are in sigma, so a file is valid on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradoracle.gate.answer import Answer
from gradoracle.model import files
from gradoracle.model.errors import UsageError
from gradoracle.model.ledger import JudgeRecord
from gradoracle.model.ledger_file import read, text_of
from gradoracle.project.config import Entry, Setting, Settings

FILE = "gradoracle-baseline.jsonl"


class Unusable(UsageError):
    """There is no baseline, or it cannot be compared with."""


@dataclass(frozen=True)
class Baseline:
    """The targets of a file, by their names in the configuration."""

    answers: Mapping[str, Answer]

    @property
    def engine(self) -> str:
        """A fingerprint of gradoracle where it was part of the tree, else ""."""
        return next((each.judge.engine for each in self.answers.values()), "")

    @property
    def gradoracle(self) -> str:
        """The version that saved it."""
        ledgers = (each.ledger for each in self.answers.values())
        return next((each.header.environment.get("gradoracle", "") for each in ledgers if each is not None), "")

    def entries(self, targets: Sequence[str]) -> dict[str, Entry]:
        """The targets in it, or those of them that are named."""
        names = [name for name in targets or self.answers if name in self.answers]
        return {name: Entry(name, self.answers[name].target, {}) for name in names}

    def settings(self, entry: Entry, profile: str | None, given: Settings) -> dict[str, Setting]:
        """What an entry was checked with when this was saved, whatever the arguments."""
        return dict(self.answers[entry.name].judge.settings)

    def files(self, entry: Entry, words: Settings) -> dict[str, str]:
        """Digests of the files of an entry."""
        return dict(self.answers[entry.name].judge.files)


def save(path: Path, baseline: Baseline) -> None:
    """Write a baseline, whole or not at all. Raises OSError."""
    sections = [s for each in baseline.answers.values() if each.ledger is not None for s in each.ledger.sections]
    files.write(path, text_of(sections))


def load(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        Unusable: there is no such file, it cannot be read, or it is not of this schema.
    """
    if not path.exists():
        raise Unusable(f"the baseline {path} does not exist; gradoracle baseline save --output {path} writes it")
    try:
        ledgers = read(path)
    except UsageError as error:
        raise Unusable(f"the baseline cannot be used: {error}") from None
    if damage := [sentence for each in ledgers for sentence in each.damage]:
        raise Unusable(f"the baseline is damaged: {damage[0]}; save it again")
    answers = {}
    for ledger in ledgers:
        for judge in ledger.of(JudgeRecord)[:1]:
            answers[judge.name] = Answer(ledger.header.target, ledger, judge)
    if not answers:
        raise Unusable(f"{path} is the ledger of a check; expected one that gradoracle baseline save writes")
    return Baseline(answers)
