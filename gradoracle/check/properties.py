"""Properties: which ones judge a family, in which order."""

from __future__ import annotations

import fnmatch
import importlib

from gradoracle.model.family import Family
from gradoracle.model.property import Property, PropertyKind


def laws_of(family: Family) -> tuple[Property, ...]:
    """The universal properties that the family's signature does not rule out, then the family's own; memory's last."""
    own = (*(law for law in universal_laws() if law.families.hold(family)), *family.properties)
    return tuple(sorted(own, key=lambda law: law.kind is PropertyKind.MEMORY))


def universal_laws() -> tuple[Property, ...]:
    """The universal properties in the order in which they are judged; some apply only to families of a certain form."""
    universal: tuple[Property, ...] = importlib.import_module("gradoracle.properties.universal").UNIVERSAL
    return tuple(sorted(universal, key=lambda law: law.kind is PropertyKind.MEMORY))


def no_such_law(family: Family, glob: str) -> str:
    """Why no property of a family matches a glob, as a sentence."""
    for law in universal_laws():
        if fnmatch.fnmatchcase(law.name, glob) and not law.families.hold(family):
            return f"{law.name} is a property of {law.families.words}, which {family.name} is not"
    return f"no property of {family.name} matches {glob!r}; see gradoracle list"
