"""Baseline: the snapshots of a project's kernels in a file, to compare with where the base cannot be built.

A file that is missing, damaged, of something else or of another schema is never taken for a baseline: a sentence says
what is wrong with it, and the gate is inconclusive. Errors are in sigma, so a file is valid on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradoracle.gate.snapshot import Snapshot
from gradoracle.model import files, serialize
from gradoracle.model.errors import UsageError, why
from gradoracle.project.config import Entry, Setting, Settings

SCHEMA = "gradoracle-baseline/3"  # raised when a field is renamed or removed, or changes its meaning
FILE = "gradoracle-baseline.json"
_FAMILY = "gradoracle-baseline/"


class Unusable(UsageError):
    """There is no baseline, or it cannot be compared with."""


@dataclass(frozen=True)
class Baseline:
    """Contents of a file.

    Attributes:
        schema: ``SCHEMA``.
        gradoracle: the version that saved it.
        engine: a fingerprint of gradoracle where it was part of the tree, else "".
        made: of what and on what: targets, commit, device, versions.
        snapshots: by the names of the targets.
    """

    schema: str
    gradoracle: str
    engine: str
    made: dict[str, str]
    snapshots: dict[str, Snapshot] = field(default_factory=dict)

    def entries(self, targets: Sequence[str]) -> dict[str, Entry]:
        """The targets in it, or those of them that are named."""
        names = [name for name in targets or self.snapshots if name in self.snapshots]
        return {name: Entry(name, self.snapshots[name].target, {}) for name in names}

    def settings(self, entry: Entry, profile: str | None, given: Settings) -> dict[str, Setting]:
        """What an entry was checked with when this was saved, whatever the arguments."""
        return dict(self.snapshots[entry.name].settings)

    def files(self, entry: Entry, words: Settings) -> dict[str, str]:
        """Digests of the files of an entry."""
        return dict(self.snapshots[entry.name].files)


def save(path: Path, baseline: Baseline) -> None:
    """Write a baseline, whole or not at all. Raises OSError."""
    text = json.dumps(serialize.to_plain(baseline), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    files.write(path, text)


def load(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        Unusable: there is no such file, it cannot be read, or it is not of this schema.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Unusable(
            f"the baseline {path} does not exist; gradoracle baseline save --output {path} writes it"
        ) from None
    except OSError as error:
        raise Unusable(f"the baseline {path} cannot be read: {why(error)}") from None
    except ValueError:
        raise Unusable(f"the baseline {path} is damaged: it is not valid JSON") from None
    schema = document.get("schema") if isinstance(document, Mapping) else None
    if not isinstance(schema, str) or not schema.startswith(_FAMILY):
        raise Unusable(f"{path} is not a baseline: its schema is {schema!r}; expected {SCHEMA!r}")
    if schema != SCHEMA:
        raise Unusable(
            f"the baseline {path} has the schema {schema!r}, and this gradoracle reads {SCHEMA!r}; save it again"
        )
    try:
        return serialize.from_plain(Baseline, document, path.name)
    except serialize.Unreadable as error:
        raise Unusable(f"the baseline {path} is damaged: {error}") from None
