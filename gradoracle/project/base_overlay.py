"""Base overlay: the kernels of one project judged by the definition and the declarations of another.

A gate judges the kernels of a change by the definition, contracts, domains and properties of its base. The process that
judges finds modules in the base's folder alone; each project's kernels are described by a host of their own, in a
process that finds modules in that project.
"""

from __future__ import annotations

import contextlib
import importlib
import linecache
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gradoracle.model.description import Description, HostedTarget
from gradoracle.model.errors import TargetError
from gradoracle.model.location import is_source
from gradoracle.model.revealed import revealed_by

OF_THE_JUDGE = ("algorithm", "fits")
"""Declarations that are functions and decide what is judged: those of the judge's project count."""


@dataclass(frozen=True)
class Places:
    """The project folders, absolute, of the two halves of a target."""

    judge: str
    kernels: str


class Apart(TargetError):
    """Two versions of a project cannot be kept apart, which says nothing about the kernels."""


@dataclass(frozen=True)
class Overlaid:
    """What is judged where kernels come from one project and their judge from another.

    Attributes:
        target: the kernels with the declarations of the judge's project; new ones with their own.
        missing: kernels, and block configurations as ``kernel, blocks=name``, that only the judge's project has.
    """

    target: HostedTarget
    missing: tuple[str, ...]


def overlaid(text: str, base: HostedTarget, own: HostedTarget) -> Overlaid:
    """The kernels of a target in one project, as they are judged by another.

    Raises:
        TargetError: no kernel of the judge's project is left.
    """
    theirs = {kernel.name: kernel for kernel in own.kernels}
    missing, kernels = list[str](), list[Description]()
    for kernel in base.kernels:
        if kernel.name not in theirs:
            missing.append(kernel.name)
            continue
        there = theirs.pop(kernel.name)
        missing += [f"{kernel.name}, blocks={name}" for name in kernel.blocks if name not in there.blocks]
        kernels.append(_running(there, kernel))
    kernels += theirs.values()
    if not kernels:
        raise TargetError(f"{text} no longer has the kernels {', '.join(missing)}")
    return Overlaid(replace(own, kernels=tuple(kernels)), tuple(missing))


def _running(there: Description, judge: Description) -> Description:
    """The functions of ``there`` with the declarations of ``judge``; only derivatives and blocks that both have.

    What ``judge`` does not let a kernel reveal, it is given.
    """
    asked = [name for name in judge.asked if name in OF_THE_JUDGE]
    asked += [name for name in there.asked if name not in OF_THE_JUDGE]
    return replace(
        judge,
        call=there.call,
        explicit=tuple(each for each in judge.explicit if each in there.explicit),
        blocks=tuple(name for name in judge.blocks if name in there.blocks),
        asked=tuple(asked),
        tiles=there.tiles,
        entries={n: e for n, e in there.entries.items() if not revealed_by((n,)) or n in judge.entries},
        constants=there.constants,
        notes=there.notes,
        autotuners=there.autotuners,
    )


def enter(folder: str, other: str) -> None:
    """Find modules in a project's folder from now on, and none in another's; those loaded from there are forgotten."""
    for name, _ in modules_of(other):
        del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if not is_source(entry or os.getcwd(), other)]
    for place in reversed(import_folders(Path(folder))):
        if place in sys.path:
            sys.path.remove(place)
        sys.path.insert(0, place)
    importlib.invalidate_caches()
    linecache.clearcache()


@contextmanager
def inside(folder: str) -> Iterator[None]:
    """Within it a folder is the current one."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def modules_of(folder: str) -> list[tuple[str, str]]:
    """(name, file or folder) of each module loaded from a project."""
    found = []
    for name, module in list(sys.modules.items()):
        places = [getattr(module, "__file__", None)]
        with contextlib.suppress(Exception):
            places += list(getattr(module, "__path__", ()))
        if name.partition(".")[0] != "gradoracle":
            found += [(name, place) for place in places if isinstance(place, str) and is_source(place, folder)][:1]
    return found


def require_apart(folder: str) -> None:
    """Check that no module was imported from a project's folder, as an import hook may do.

    Raises:
        Apart: one was.
    """
    if folder and (found := modules_of(folder)):
        raise Apart(f"it imports {found[0][1]}, which is not the base's (is the project installed in editable mode?)")


def import_folders(folder: Path) -> list[str]:
    """The folders that a project's modules are imported from: itself and its ``src``."""
    return [str(place) for place in (folder, folder / "src") if place.is_dir()]
