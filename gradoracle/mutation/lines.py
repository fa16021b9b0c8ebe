"""Lines: what a run found out, kept as json line by line, so that a run which was cut goes on where it ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Lines:
    """Entries in a file, a line of json each as they come.

    Args:
        path: the file; its folder is made where it is missing.
        mark: a fingerprint of all that the entries depend on; those under another are not used.
    """

    def __init__(self, path: Path, mark: str) -> None:
        self.path, self._mark = path, mark

    def entries(self) -> Iterator[dict[str, Any]]:
        """Those of this mark, in order; lines that were cut are left out."""
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
        """Append one entry, on a line of its own also where the last one was cut. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            cut = file.read(1) not in (b"", b"\n")
            file.write(b"\n" * cut + json.dumps({"mark": self._mark, **entry}).encode() + b"\n")
