"""Baseline: the snapshots of a project's kernels in a file, to compare with where the base cannot be built.

A baseline that is missing, no JSON, of something else or of an older schema is never taken for one: it is told apart in
a sentence, and the gate is not green. Errors are in sigma, which is the same on every machine, so a file travels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradoracle.gate.snapshot import Snapshot
from gradoracle.model import serialize
from gradoracle.model.errors import UsageError, why
from gradoracle.project import files
from gradoracle.project.config import Entry
from gradoracle.project.settings import Setting, Settings

SCHEMA = "gradoracle-baseline/2"  # raised when a field is renamed or removed, or changes its meaning
FILE = "gradoracle-baseline.json"
_FAMILY = "gradoracle-baseline/"


class Unusable(UsageError):
    """A baseline that there is not, or that cannot be compared with."""


@dataclass(frozen=True)
class Baseline:
    """What a file holds.

    Attributes:
        schema: ``SCHEMA``.
        gradoracle: the version that saved it.
        engine: a fingerprint of it where it was part of the tree, else "".
        made: of what and on what: commit, device, versions.
        snapshots: by the names of the targets.
    """

    schema: str
    gradoracle: str
    engine: str
    made: dict[str, str]
    snapshots: dict[str, Snapshot] = field(default_factory=dict)

    def entries(self, targets: Sequence[str]) -> dict[str, Entry]:
        """The targets that it holds: those named, else all."""
        kept = self.snapshots if not targets else {name: self.snapshots[name] for name in targets if name in self}
        return {name: Entry(name, snapshot.target, {}) for name, snapshot in kept.items()}

    def __contains__(self, name: str) -> bool:
        return name in self.snapshots

    def settings(self, entry: Entry, profile: str | None, given: Settings) -> dict[str, Setting]:
        """What an entry was checked with when this was saved, whatever is asked for now."""
        return dict(self.snapshots[entry.name].settings)

    def files(self, entry: Entry, words: Settings) -> dict[str, str]:
        """The files that an entry was made of, with their digests."""
        return dict(self.snapshots[entry.name].files)


def save(path: Path, baseline: Baseline) -> None:
    """Write a baseline whole or not at all.

    Raises:
        OSError: the disk is full, say.
    """
    text = json.dumps(serialize.to_plain(baseline), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    files.write(path, text)


def load(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        Unusable: there is no such file, it cannot be read, or it is none of this schema.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Unusable(f"there is no baseline {path}; gradoracle baseline save --output {path} makes one") from None
    except OSError as error:
        raise Unusable(f"the baseline {path} cannot be read: {why(error)}") from None
    except ValueError:
        raise Unusable(f"the baseline {path} is damaged: it is no JSON") from None
    schema = document.get("schema") if isinstance(document, Mapping) else None
    if not isinstance(schema, str) or not schema.startswith(_FAMILY):
        raise Unusable(f"{path} is no baseline of gradoracle: its schema is {schema!r}; expected {SCHEMA!r}")
    if schema != SCHEMA:
        raise Unusable(
            f"the baseline {path} is of the schema {schema!r}, and this gradoracle reads {SCHEMA!r}; save it anew"
        )
    try:
        return serialize.from_plain(Baseline, document, path.name)
    except serialize.Unreadable as error:
        raise Unusable(f"the baseline {path} is damaged: {error}") from None
