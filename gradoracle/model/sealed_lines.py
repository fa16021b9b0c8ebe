"""Sealed lines: a file of JSON objects, a line each, which is only appended to.

The seal of a line is a digest of its content and of the seal before it. So a line that was cut, changed or removed is
found and named, and every other line still counts. It shows damage; it does not show who wrote the file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_UNCOUNTED = "what it held is not counted"
_SEAL = re.compile(r',"seal":"([0-9a-f]{32})"}$')


def sealed(fields: Mapping[str, Any], before: str) -> tuple[str, str]:
    """The line of some fields and its seal, given the seal of the line before it; "" of the first."""
    content = json.dumps(fields, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    seal = _sealed(content, before)
    return f'{content[:-1]},"seal":"{seal}"}}\n', seal


def _sealed(content: str, before: str) -> str:
    return hashlib.sha256(f"{before}{content}".encode()).hexdigest()[:32]


class SealedLines:
    """A file, read while it is written.

    Attributes:
        path: of the file.
        seal: of the last whole line; "" where there is none.
        end: where it ends, in bytes.
        damage: the lines that are not what was written, a sentence each.
        cut: that the last line is cut, a sentence; "" where it is whole.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.seal, self.end, self._number = path, "", 0, 0
        self.damage: list[str] = []
        self.cut = ""

    def more(self) -> list[tuple[int, dict[str, Any]]]:
        """(number, fields) of each line that was added since, and is what was written.

        Raises:
            OSError: the file cannot be read.
        """
        found = []
        with self.path.open("rb") as file:
            file.seek(self.end)
            self.cut = ""
            for raw in file:
                if not raw.endswith(b"\n"):
                    self.cut = f"{self.path}, line {self._number + 1} is cut: {_UNCOUNTED}"
                    break
                self._number, self.end = self._number + 1, self.end + len(raw)
                text = raw.decode("utf-8", "replace").rstrip("\n")
                own = _SEAL.search(text)
                content, before = f"{text[: own.start()]}}}" if own else text, self.seal
                self.seal = own[1] if own else before
                if own and own[1] == _sealed(content, before):
                    found.append((self._number, json.loads(content)))
                else:
                    what = "is not what was written, or lines before it are gone"
                    self.damage.append(f"{self.path}, line {self._number} {what}: {_UNCOUNTED}")
        return found

    def add(self, fields: Mapping[str, Any]) -> None:
        """Append a line after the last whole one; the folder is made if missing. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab"):
            pass
        self.more()
        with self.path.open("r+b") as file:
            file.truncate(self.end)
            file.seek(self.end)
            file.write(sealed(fields, self.seal)[0].encode())
