"""Cache: results stored in a folder under a digest of all that they depend on.

A damaged entry is computed again, and nothing is stored in a folder that cannot be written; either is reported once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradoracle.model.errors import tell, why
from gradoracle.model.files import write

VARIABLE = "GRADORACLE_CACHE"  # the folder; empty: no cache
KEPT_DAYS = 30  # an entry that was not read for this many days is removed


def folder() -> Path | None:
    """The folder: ``GRADORACLE_CACHE``, or gradoracle in the user's cache folder; None: no cache."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named).absolute() if named else None
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "gradoracle"


def digest(*parts: object) -> str:
    """The name of an entry that depends on these values, which JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Cache:
    """JSON documents of one kind, each under a digest of all that it depends on.

    Args:
        kind: the subfolder of these entries.
        root: the cache folder; None: no cache.
        tell: a function that gets one message about a damaged entry and one about the folder, at most.
    """

    def __init__(self, kind: str, root: Path | None, tell: Callable[[str], None] = tell) -> None:
        self._folder = None if root is None else root / kind
        self._tell = tell
        self._is_damage_told = self._is_closed = self._is_swept = False

    def read(self, name: str) -> Any:
        """The document of this name; None if there is none that can be read."""
        if self._folder is None:
            return None
        file = self._folder / name
        try:
            text = file.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            self.damaged(name, why(error) if isinstance(error, OSError) else "it is no text")
            return None
        seal, _, content = text.partition("\n")
        if seal != _seal(content):
            self.damaged(name, "its content is not what was written")
            return None
        with contextlib.suppress(OSError):  # a folder of another user can still be read
            os.utime(file)
        return json.loads(content)

    def write(self, name: str, document: Any) -> None:
        """Store a document, if the folder can be written."""
        if self._folder is None or self._is_closed:
            return
        content = json.dumps(document)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write(self._folder / name, f"{_seal(content)}\n{content}")
            self._sweep(self._folder)
        except OSError as error:
            self._is_closed = True
            self._tell(f"the cache {self._folder} cannot be written, so no further results are kept: {why(error)}")

    def damaged(self, name: str, what: str) -> None:
        """Report an entry that cannot be used, unless one was reported before."""
        if not self._is_damage_told and self._folder is not None:
            self._is_damage_told = True
            self._tell(f"the cache entry {self._folder / name} is damaged ({what}) and computed again")

    def _sweep(self, folder: Path) -> None:
        """Remove entries that were not read for a long time, once a process."""
        if self._is_swept:
            return
        self._is_swept = True
        oldest = time.time() - KEPT_DAYS * 86400.0
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                if entry.stat().st_mtime < oldest:
                    os.unlink(entry)


def _seal(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
