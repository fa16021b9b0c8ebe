"""Shipped names: those of the families and properties of gradoracle, read from their sources without importing them.

Kernels must not be imported before the device is known (``device.prepare``), and completion must not wait for PyTorch.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

SHIPPED = "gradoracle.properties"  # its folders (or modules) that define FAMILY are the shipped families
KERNELS = "gradoracle.kernels"
_FAMILY = re.compile(r"^FAMILY\b", re.MULTILINE)
_PROPERTY = re.compile(r"^@property\b.*?^def (\w+)\(", re.MULTILINE | re.DOTALL)


def family_names() -> list[str]:
    """The names of the shipped families (of their folders or modules), sorted."""
    files = [(file, text) for file, text in _sources("*/__init__.py") if _FAMILY.search(text)]
    modules = [file.stem for file, text in _sources("*.py") if _FAMILY.search(text)]
    return sorted([*(file.parent.name for file, _ in files), *modules])


def property_names() -> list[str]:
    """The names of the shipped properties, sorted, each once."""
    return sorted({name for _, text in _sources("**/*.py") for name in _PROPERTY.findall(text)})


def _sources(pattern: str) -> Iterator[tuple[Path, str]]:
    spec = importlib.util.find_spec(SHIPPED)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in Path(folder).glob(pattern):
            yield file, file.read_text(encoding="utf-8")
