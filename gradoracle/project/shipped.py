"""Shipped: the families and laws that come with gradoracle, read off their sources and not imported.

Kernels must not be imported before the device is known (``device.prepare``), and a shell does not wait for PyTorch.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

SHIPPED = "gradoracle.properties"  # the package whose folders (or modules) that define FAMILY are the shipped families
KERNELS = "gradoracle.kernels"  # what these judge
_FAMILY = re.compile(r"^FAMILY\b", re.MULTILINE)
_LAW = re.compile(r"^@law\b.*?^def (\w+)\(", re.MULTILINE | re.DOTALL)


def family_names(package: str = SHIPPED) -> list[str]:
    """Names of the shipped families, which are those of their folders or modules, sorted."""
    files = [(file, text) for file, text in _sources(package, "*/__init__.py") if _FAMILY.search(text)]
    modules = [file.stem for file, text in _sources(package, "*.py") if _FAMILY.search(text)]
    return sorted([*(file.parent.name for file, _ in files), *modules])


def law_names(package: str = SHIPPED) -> list[str]:
    """Names of the shipped laws, sorted; a name that several families have comes once."""
    return sorted({name for _, text in _sources(package, "**/*.py") for name in _LAW.findall(text)})


def _sources(package: str, pattern: str) -> Iterator[tuple[Path, str]]:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in Path(folder).glob(pattern):
            yield file, file.read_text(encoding="utf-8")
