"""Modules: those that the shipped families and laws are written in, read and not imported.

Kernels must not be imported before the device is known (``device.prepare``), and a shell does not wait for PyTorch.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

SHIPPED = "gradoracle.properties"  # the package whose modules that define FAMILY and KERNELS are the shipped families
KERNELS = "gradoracle.kernels"  # what these judge
_FAMILY = re.compile(r"^FAMILY\b", re.MULTILINE)
_LAW = re.compile(r"^@law\b.*?^def (\w+)\(", re.MULTILINE | re.DOTALL)


def family_names(package: str = SHIPPED) -> list[str]:
    """Names of the shipped families, which are those of their modules, sorted."""
    return sorted(file.stem for file, text in _sources(package) if _FAMILY.search(text))


def law_names(package: str = SHIPPED) -> list[str]:
    """Names of the shipped laws, sorted."""
    return sorted(name for _, text in _sources(package) for name in _LAW.findall(text))


def _sources(package: str) -> Iterator[tuple[Path, str]]:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in Path(folder).glob("*.py"):
            yield file, file.read_text(encoding="utf-8")
