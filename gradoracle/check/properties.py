"""Properties: which ones judge a family, in which order."""

from __future__ import annotations

import fnmatch
import importlib

from gradoracle.model.family import Family
from gradoracle.model.property import Property, PropertyKind


def properties_of(family: Family) -> tuple[Property, ...]:
    """The universal properties that the family's signature does not rule out, then the family's own; memory's last."""
    own = (*(prop for prop in universal_properties() if prop.families.hold(family)), *family.properties)
    return tuple(sorted(own, key=lambda prop: prop.kind is PropertyKind.MEMORY))


def universal_properties() -> tuple[Property, ...]:
    """The universal properties in the order in which they are judged; some apply only to families of a certain form."""
    universal: tuple[Property, ...] = importlib.import_module("gradoracle.properties.universal").UNIVERSAL
    return tuple(sorted(universal, key=lambda prop: prop.kind is PropertyKind.MEMORY))


def no_such_property(family: Family, glob: str) -> str:
    """Why no property of a family matches a glob, as a sentence."""
    for prop in universal_properties():
        if fnmatch.fnmatchcase(prop.name, glob) and not prop.families.hold(family):
            return f"{prop.name} is a property of {prop.families.words}, which {family.name} is not"
    return f"no property of {family.name} matches {glob!r}; see gradoracle list"
