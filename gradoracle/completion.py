"""Completion: what a shell may offer for a word of the command line, found without importing a kernel or PyTorch."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from gradoracle import config
from gradoracle.errors import UsageError

_FAMILY = re.compile(r"^FAMILY\b", re.MULTILINE)
_LAW = re.compile(r"^@law\b.*?^def (\w+)\(", re.MULTILINE | re.DOTALL)
_PROPERTIES = "gradoracle.properties"


def targets(incomplete: str) -> list[str]:
    """Kernels of the project, shipped families and ``all``; of files the shell itself knows."""
    shipped = [file.stem for file, text in _sources() if _FAMILY.search(text)]
    return _starting([*_project().kernels, *sorted(shipped), "all"], incomplete)


def profiles(incomplete: str) -> list[str]:
    """Profiles of the project."""
    return _starting(_project().profiles, incomplete)


def laws(incomplete: str) -> list[str]:
    """The names of all shipped laws."""
    return _starting(sorted(name for _, text in _sources() for name in _LAW.findall(text)), incomplete)


def _starting(names: object, incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]  # type: ignore[call-overload]


def _project() -> config.Config:
    """The project's config; a mistake in it is said when it is used."""
    try:
        return config.load()
    except UsageError:
        return config.EMPTY


def _sources() -> Iterator[tuple[Path, str]]:
    """The modules that families and laws are written in, with their text."""
    spec = importlib.util.find_spec(_PROPERTIES)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in sorted(Path(folder).glob("*.py")):
            yield file, file.read_text(encoding="utf-8")
