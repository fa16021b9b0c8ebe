"""Cache: results stored in a folder under a digest of all that they depend on.

An entry is sealed with a key, in a file of the folder that only its owner can read: what another program has written
is no entry. A damaged entry is computed again, and nothing is stored in a folder that cannot be written; either is
reported once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradoracle.model.errors import tell, why
from gradoracle.model.files import write

VARIABLE = "GRADORACLE_CACHE"  # the folder; empty: no cache
KEY = "key"  # the file of the key
KEPT_DAYS = 30  # an entry that was not read for this many days is removed

_KEY_BYTES, _SEAL_BYTES = 32, 65


def folder() -> Path | None:
    """The folder: ``GRADORACLE_CACHE``, or gradoracle in the user's cache folder; None: no cache."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named).absolute() if named else None
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "gradoracle"


def key_of(root: Path) -> bytes:
    """The key of a cache folder, which is made if it is missing.

    Raises:
        OSError: it cannot be read or made, or others can read it.
    """
    file = root / KEY
    if not file.exists():
        root.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{KEY}.", dir=root)  # of mode 600
        try:
            with os.fdopen(handle, "wb") as new:
                new.write(secrets.token_bytes(_KEY_BYTES))
            with contextlib.suppress(FileExistsError):  # another process has made it
                os.link(name, file)
        finally:
            os.unlink(name)
    with file.open("rb") as opened:
        mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
        key = opened.read()
    if mode & 0o077 or len(key) != _KEY_BYTES:
        raise OSError(errno.EACCES, f"{file} has mode {mode:o} and {len(key)} bytes; expected 600 and {_KEY_BYTES}")
    return key


def sealed(key: bytes, name: str, content: bytes) -> bytes:
    """A content with the seal of a key, under the name of an entry."""
    return _seal(key, name, content) + content


def unsealed(key: bytes, name: str, data: bytes) -> bytes | None:
    """The content of an entry; None where its seal is not that of the key."""
    seal, content = data[:_SEAL_BYTES], data[_SEAL_BYTES:]
    return content if hmac.compare_digest(seal, _seal(key, name, content)) else None


def _seal(key: bytes, name: str, content: bytes) -> bytes:
    return hmac.digest(key, name.encode() + b"\n" + content, "sha256").hex().encode() + b"\n"


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
        self._root, self._folder = root, None if root is None else root / kind
        self._tell = tell
        self._is_damage_told = self._is_closed = self._is_swept = False

    def read(self, name: str) -> Any:
        """The document of this name; None if there is none that can be read."""
        if self._folder is None or self._root is None:
            return None
        file = self._folder / name
        try:
            data = file.read_bytes()
            content = unsealed(key_of(self._root), file.name, data)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.damaged(name, why(error))
            return None
        try:
            if content is None:
                raise ValueError
            document = json.loads(content)
        except ValueError:
            self.damaged(name, "its content is not what was written here")
            return None
        with contextlib.suppress(OSError):  # a folder that cannot be written can still be read
            os.utime(file)
        return document

    def write(self, name: str, document: Any) -> None:
        """Store a document, if the folder can be written."""
        if self._folder is None or self._root is None or self._is_closed:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write(self._folder / name, sealed(key_of(self._root), name, json.dumps(document).encode()))
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
