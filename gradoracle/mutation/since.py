"""Since: what became of the mutants of an earlier report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradoracle.model.errors import UsageError, why
from gradoracle.mutation.outcome import Fate, Outcome
from gradoracle.mutation.record import SCHEMA


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

    def same(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes of mutants that it tried too."""
        return [each for each in outcomes if each.mutant.key in self.fates and each.fate is not Fate.NOT_RUN]

    def turned(self, outcomes: Sequence[Outcome], before: Fate, now: Fate) -> list[Outcome]:
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
