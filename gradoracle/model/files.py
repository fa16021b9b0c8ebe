"""Files: whatever gradoracle writes is written completely or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write(path: Path, content: str | bytes) -> None:
    """Write a file completely or not at all: the old content stays until all of the new is on disk.

    A pipe, a device, or a file in a folder that takes no new files is written in place; a link stays a link.

    Raises:
        OSError: as ``open`` does, or the disk is full.
    """
    path, data = path.resolve(), content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except PermissionError:  # the file can be written, its folder cannot
        path.write_bytes(data)
        return
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.chmod(path.stat().st_mode if path.exists() else 0o666 & ~_umask())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
