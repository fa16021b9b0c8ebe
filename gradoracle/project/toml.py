"""TOML: reads a file; errors are one sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[no-redef]

from gradoracle.model.errors import UsageError, why


def read(file: Path, shown: str) -> dict[str, Any]:
    """The content of a TOML file.

    Args:
        file: its path.
        shown: its name in error messages.

    Raises:
        UsageError: it cannot be read, or is not valid TOML.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{shown}: {why(error)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{shown} is not valid TOML: {error}") from None


def entries(file: Path, shown: str, name: str) -> list[Any]:
    """The ``[[name]]`` entries of a file that holds nothing else.

    Raises:
        UsageError: as ``read`` does, or it holds something else.
    """
    document = read(file, shown)
    found = document.get(name, [])
    if set(document) - {name} or not isinstance(found, list):
        raise UsageError(f"{shown}: expected only [[{name}]] entries")
    return found
