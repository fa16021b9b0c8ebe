"""Provenance: the files and packages of kernels, definition and properties, to compare two machines."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from gradoracle.model.errors import UsageError
from gradoracle.model.location import is_source, place_of, working_tree
from gradoracle.model.versions import public, version
from gradoracle.project.import_closure import closure, digests

ENGINE = ("gradoracle", "torch", "triton")
_LOGS = ".txt"  # outside a package, probably the log of a run
_WRITTEN = ("gradoracle-", "https://docs.oasis-open.org/sarif/")  # the schemas of files that gradoracle writes begin so


def engine() -> dict[str, str]:
    """The versions here of the packages that judge."""
    return {name: public(version(name)) for name in ENGINE}


@dataclass(frozen=True)
class Provenance:
    """Digests of files, by their paths from the root of their tree, and versions of installed packages, by name.

    ``engine`` has the versions of the packages that judge.
    """

    files: dict[str, str]
    packages: dict[str, str]
    engine: dict[str, str] = field(default_factory=engine)

    def require(self, there: Provenance) -> None:
        """Raises UsageError if another process has other files or packages."""
        for name, ours in (self.engine | self.packages).items():
            if (theirs := (there.engine | there.packages).get(name)) != ours:
                has = (
                    f"{name} {theirs}"
                    if theirs
                    else f"{name} from elsewhere"
                    if name in self.packages
                    else f"no {name}"
                )
                raise UsageError(f"it has {has}; expected {ours or 'none'}, as here")
        for name in sorted({*self.files, *there.files}):
            if self.files.get(name) != there.files.get(name):
                what = "lacks" if name not in there.files else "has another" if name in self.files else "also has"
                raise UsageError(f"it {what} {name}; expected the same files as here")


@dataclass(frozen=True)
class ProvenanceJob:
    """Asks a process for the Provenance of its target."""


def provenance(functions: Sequence[Any], target: str) -> Provenance:
    """Of functions and a TARGET."""
    return Provenance(files_of(functions, target), packages_of(functions))


def files_of(functions: Sequence[Any], target: str) -> dict[str, str]:
    """Digests of the import closure of functions and a TARGET, by path from the root of their tree."""
    found: dict[str, str] = {}
    for root, files in closures(functions, target):
        found |= digests(files, root)
    return found


def closures(functions: Sequence[Any], target: str) -> Iterator[tuple[Path, list[Path]]]:
    """The import closures of functions and a TARGET, each with the root of its tree.

    The root is that of the working tree, else the current folder, else the file's own. Installed packages are left out,
    and so are logs and reports, which may lie next to a kernel on one machine only.
    """
    files = {Path(place.file) for place in map(place_of, functions) if place.file}
    place = target.rpartition(":")[0] if ":" in target else target
    files |= {Path(place)} if place.endswith(".py") else set()
    by_root: dict[Path, set[Path]] = {}
    for file in (file.resolve() for file in files if file.is_file()):
        root = _root(file)
        if is_source(str(file), str(root)):
            by_root.setdefault(root, set()).add(file)
    for root, starts in sorted(by_root.items()):
        yield root, [file for file in _closure(frozenset(starts), root) if not _is_written(file)]


def packages_of(functions: Sequence[Any]) -> dict[str, str]:
    """Versions of the installed packages that functions come from, without gradoracle."""
    found: dict[str, str] = {}
    for place in map(place_of, functions):
        name, file = place.module.partition(".")[0], Path(place.file).resolve() if place.file else None
        if name in ("", "gradoracle") or (file is not None and is_source(str(file), str(_root(file)))):
            continue
        found |= {each: public(version(each)) for each in _distributions().get(name, ())}
    return dict(sorted(found.items()))


@functools.cache
def _distributions() -> Mapping[str, Sequence[str]]:
    return metadata.packages_distributions()


@functools.cache
def _closure(starts: frozenset[Path], root: Path) -> frozenset[Path]:
    return closure(starts, root)


def _is_written(file: Path) -> bool:
    """Whether a file is not part of a kernel but was written by a run, or cannot be read."""
    if not os.access(file, os.R_OK):
        return True
    if file.suffix == _LOGS:
        return not (file.parent / "__init__.py").is_file()
    if file.suffix not in (".json", ".jsonl"):
        return False
    try:
        with file.open("rb") as opened:  # of a ledger, its header
            document = json.loads(opened.read() if file.suffix == ".json" else opened.readline())
    except ValueError:
        return False
    schema = (document.get("schema") or document.get("$schema")) if isinstance(document, dict) else None
    return isinstance(schema, str) and schema.startswith(_WRITTEN)


def _root(file: Path) -> Path:
    """The folder to which a file's path is relative, the same in every copy of its project."""
    tree, here = working_tree(file.parent), Path.cwd().resolve()
    if (tree / ".git").exists():
        return tree
    return here if file.is_relative_to(here) else file.parent
