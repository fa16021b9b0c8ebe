"""Acknowledged: changes of what judges a kernel that somebody answers for, in a file next to pyproject.toml.

[[change]]
piece = "the definition of rmsnorm"
change = "9f31c2d4a0b85e67"       # as the gate prints it: this change of the piece and no other
reason = "eps belongs inside the root, as in the paper"
author = "A. Kernel-Author"
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradoracle.model.errors import UsageError
from gradoracle.model.ledger import Piece
from gradoracle.project import toml

FILE = "gradoracle-acknowledged.toml"
_KEYS = ("piece", "change", "reason", "author")


@dataclass(frozen=True)
class Acknowledgement:
    """One entry of the file."""

    piece: str
    change: str
    reason: str
    author: str


def read(folder: Path) -> dict[tuple[str, str], Acknowledgement]:
    """The entries of a project, by piece and change; empty without a file.

    Raises:
        UsageError: the file cannot be read, or an entry has a missing, unknown or empty key.
    """
    file = folder / FILE
    if not file.is_file():
        return {}
    found = [_entry(position, entry) for position, entry in enumerate(toml.entries(file, FILE, "change"), 1)]
    return {(entry.piece, entry.change): entry for entry in found}


def name_of(base: Piece | None, head: Piece | None) -> str:
    """The name of one change: a digest of what a piece was and what it is; None: it is not there."""
    texts = (piece.text if piece is not None and piece.text else "-" for piece in (base, head))
    return hashlib.sha256(" ".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _entry(position: int, entry: Any) -> Acknowledgement:
    if not isinstance(entry, Mapping) or set(entry) != set(_KEYS):
        raise UsageError(f"{FILE}, change {position}: expected exactly the keys {', '.join(_KEYS)}")
    for key, value in entry.items():
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{FILE}, change {position}: {key} is {value!r}; expected a string")
    return Acknowledgement(**entry)


def entry(piece: str, change: str) -> str:
    """What to write into the file to acknowledge a change, except for author and reason."""
    return f'[[change]] piece = "{piece}" change = "{change}" reason = "..." author = "..."'
