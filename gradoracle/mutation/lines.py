"""Lines: results of a run, kept as json line by line, so that an interrupted run resumes where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Lines:
    """Entries in a file, a line of json each.

    Args:
        path: the file; its folder is made if missing.
        mark: a fingerprint of everything that entries depend on; those under another are ignored.
    """

    def __init__(self, path: Path, mark: str) -> None:
        self.path, self._mark = path, mark

    def entries(self) -> Iterator[dict[str, Any]]:
        """Those of this mark, in order; truncated lines are left out."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except OSError:
            return
        for line in lines:
            try:
                entry = json.loads(line)
                if entry["mark"] == self._mark:
                    yield entry
            except (ValueError, KeyError, TypeError):
                continue

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append one entry, on a line of its own even after a truncated one. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            cut = file.read(1) not in (b"", b"\n")
            file.write(b"\n" * cut + json.dumps({"mark": self._mark, **entry}).encode() + b"\n")
