"""Homes: lets a Python that does not have gradoracle import it from the folders where it lies, and nothing beside it.

This file is run by its path, before anything of gradoracle can be imported.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from importlib.machinery import ModuleSpec
from typing import Any

ALONE = "import sys; sys.path[:] = [entry for entry in sys.path if entry]\n"
"""How a program of another Python begins: nothing in the current folder hides a module."""
LENT = ("jaxtyping", "wadler_lindig")  # written in Python alone, and needed where a file declares a definition, too


class Homes:
    """Finds packages in given folders, by name."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = folders

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As of ``importlib.abc.MetaPathFinder``."""
        folder = self._folders.get(name)
        if folder is None:
            return None
        return importlib.util.spec_from_file_location(
            name, f"{folder}/__init__.py", submodule_search_locations=[folder]
        )

    def find_distributions(self, context: metadata.DistributionFinder.Context) -> Iterable[metadata.Distribution]:
        """As of ``importlib.metadata.DistributionFinder``: packages look up their own version."""
        folder = self._folders.get((context.name or "").replace("-", "_"))
        if folder is None:
            return ()
        own = metadata.DistributionFinder.Context(name=context.name, path=[os.path.dirname(folder)])
        return metadata.MetadataPathFinder.find_distributions(own)


def folders(names: tuple[str, ...]) -> dict[str, str]:
    """Where packages lie for this process, of those that it has."""
    specs = {name: importlib.util.find_spec(name) for name in names}
    places = {name: spec.submodule_search_locations for name, spec in specs.items() if spec is not None}
    return {name: found[0] for name, found in places.items() if found}


def install(own: Mapping[str, str], lent: Mapping[str, str]) -> None:
    """Find packages in these folders.

    Args:
        own: folders by the name of the package.
        lent: likewise, of those that this Python may have itself.
    """
    sys.meta_path.insert(0, Homes(own))  # type: ignore[arg-type]
    sys.meta_path.append(Homes(lent))  # type: ignore[arg-type]
