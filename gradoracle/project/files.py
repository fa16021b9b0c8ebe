"""Files: what gradoracle writes is in its place whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Put a text in a file whole or not at all: what is there stays until all of the new is on the disk.

    A pipe, a device and a file in a folder that takes no new ones are written to as they are; a link stays one.

    Raises:
        OSError: as ``open`` does; the disk is full, say.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except PermissionError:  # the file may be written and its folder not
        path.write_text(text, encoding="utf-8")
        return
    new = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.chmod(path.stat().st_mode if path.exists() else 0o666 & ~_umask())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The mask of new files; there is no way to read it but to set it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
