"""Base overlay: the kernels of one project judged by the declarations of another, in one process.

A gate judges the kernels of a change by the definition, contracts, domains and properties of its base. The target is
resolved in the base's folder; the modules of that folder are unloaded, and the target is resolved again in the other
folder. The callables come from there, everything else from the base. Functions of the base keep their globals; an
import inside one of them that runs later finds the other module, a difference that ``gate.fingerprints`` sees.
"""

from __future__ import annotations

import contextlib
import importlib
import linecache
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradoracle.model.errors import TargetError
from gradoracle.model.kernel import Kernel
from gradoracle.model.location import is_source
from gradoracle.project.target import Target, resolve


@dataclass(frozen=True)
class Places:
    """The project folders, absolute, of the two halves of a target."""

    judge: str
    kernels: str


class Apart(TargetError):
    """Two versions of a project cannot be kept apart in one process, which says nothing about the kernels."""


@dataclass(frozen=True)
class Substituted:
    """A target whose kernels come from one project and their judge from another.

    Attributes:
        target: the kernels and the family.
        missing: kernels, and block configurations as ``kernel, blocks=name``, that only the judge's project has.
    """

    target: Target
    missing: tuple[str, ...]


def resolved(text: str, family: str | None, places: Places | None) -> Target:
    """A target of one project, or of two."""
    return resolve(text, family) if places is None else substituted(text, family, places).target


def substituted(text: str, family: str | None, places: Places) -> Substituted:
    """Resolve a target in both projects; the process ends up in the folder of the kernels.

    Raises:
        TargetError: as ``resolve`` does, for the judge's project.
        Apart: both cannot be imported into one process, or one imports modules of the other.
    """
    _enter(places.judge, places.kernels)
    try:
        judge = resolve(text, family)
    except TargetError as error:
        raise TargetError(f"in the base: {error}") from None
    _enter(places.kernels, places.judge)
    try:
        own = resolve(text, family, judge.family)
    except TargetError as error:
        raise Apart(f"it cannot be imported into the same process as its base: {error}") from None
    if left := modules_of(places.judge):
        raise Apart(f"it imports {left[0][1]} of its base")
    theirs = {kernel.name: kernel for kernel in own.kernels}
    missing, kernels = [], []
    for kernel in judge.kernels:
        if kernel.name not in theirs:
            missing.append(kernel.name)
            continue
        there = theirs.pop(kernel.name)
        missing += [f"{kernel.name}, blocks={name}" for name in kernel.blocks if name not in there.blocks]
        kernels.append(_running(there, kernel))
    kernels += theirs.values()  # new ones, under their own declarations
    if not kernels:
        raise TargetError(f"{text} no longer has the kernels {', '.join(missing)}")
    return Substituted(replace(judge, kernels=kernels, source=own.source), tuple(missing))


def _running(there: Kernel, judge: Kernel) -> Kernel:
    """The callables of ``there`` with the declarations of ``judge``; only derivatives and blocks that both have."""
    blocks: Mapping[str, Any] = {name: there.blocks[name] for name in judge.blocks if name in there.blocks}
    return replace(
        judge,
        call=there.call,
        vjp=judge.vjp and there.vjp,
        jvp=judge.jvp and there.jvp,
        hvp=judge.hvp and there.hvp,
        blocks=blocks,
        fits=there.fits,
        tiles=there.tiles,
        extras=there.extras,
        notes=there.notes,
    )


def _enter(folder: str, other: str) -> None:
    """Unload the modules of the other folder; make this one current, and the first in which modules are found."""
    for name, _ in modules_of(other):
        del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if not is_source(entry or os.getcwd(), other)]
    for place in reversed(import_folders(Path(folder))):
        if place in sys.path:
            sys.path.remove(place)
        sys.path.insert(0, place)
    os.chdir(folder)
    importlib.invalidate_caches()
    linecache.clearcache()


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


def import_folders(folder: Path) -> list[str]:
    """The folders that a project's modules are imported from: itself and its ``src``."""
    return [str(place) for place in (folder, folder / "src") if place.is_dir()]
