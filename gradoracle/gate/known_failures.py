"""Known failures: properties that a kernel is known to violate, in a file with reason, issue and expiry.

    [[failure]]
    kernel = "attention"              # a glob
    property = "hvp_matches_the_oracle"    # a glob
    dtype = "float16"                 # default: every dtype
    reason = "the saved statistics are rounded to float16"
    issue = "https://example.org/issues/12"
    expires = 2027-01-31

An entry whose property holds is a regression, so that no entry outlives its failure; so is one that has expired.
"""

from __future__ import annotations

import datetime
import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradoracle.model.errors import UsageError
from gradoracle.model.serialize import NAMED_PROPERTY, from_plain
from gradoracle.project import toml

_TEXTS = ("kernel", "property", "reason", "issue")


@dataclass(frozen=True)
class KnownFailure:
    """One entry of the file."""

    kernel: str
    property_name: str = field(metadata=NAMED_PROPERTY)
    reason: str
    issue: str
    expires: datetime.date
    dtype: str = "*"

    def matches(self, kernel: str, property_name: str, dtype: str) -> bool:
        """Whether it covers a verdict."""
        pairs = ((kernel, self.kernel), (property_name, self.property_name), (dtype, self.dtype))
        return all(fnmatch.fnmatchcase(name, glob) for name, glob in pairs)

    def has_expired(self, today: datetime.date) -> bool:
        """Whether its last day is past."""
        return today > self.expires

    def __str__(self) -> str:
        where = "" if self.dtype == "*" else f" in {self.dtype}"
        return f"{self.property_name} of {self.kernel}{where} ({self.reason}; {self.issue}; until {self.expires})"


def read(file: Path, shown: str) -> list[KnownFailure]:
    """The entries of a file.

    Raises:
        UsageError: there is no such file, it cannot be read, or an entry is malformed.
    """
    if not file.is_file():
        raise UsageError(f"known-failures {shown}: no such file")
    entries = toml.entries(file, shown, "failure")
    return [_entry(f"{shown}, failure {position}", entry) for position, entry in enumerate(entries, 1)]


def _entry(where: str, entry: Any) -> KnownFailure:
    known = (*_TEXTS, "expires", "dtype")
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where} is {entry!r}; expected a table")
    for key in entry:
        if key not in known:
            raise UsageError(f"{where}: {key!r} is unknown; expected {', '.join(known)}")
    for key in (*_TEXTS, "expires"):
        if key not in entry:
            raise UsageError(f"{where} has no {key}; expected {', '.join((*_TEXTS, 'expires'))}")
    for key in (*_TEXTS, "dtype"):
        if not isinstance(entry.get(key, "*"), str) or not entry.get(key, "*").strip():
            raise UsageError(f"{where}: {key} is {entry[key]!r}; expected a string")
    if not isinstance(entry["expires"], datetime.date) or isinstance(entry["expires"], datetime.datetime):
        raise UsageError(f"{where}: expires is {entry['expires']!r}; expected a date such as 2027-01-31")
    return from_plain(KnownFailure, dict(entry))
