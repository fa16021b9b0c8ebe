"""Substitution: the kernels of one project judged by the declarations of another, in one process.

A gate holds the kernels of a change to the definition, contracts, domains and laws of its base. The base's target is
resolved first, in the base's folder; its modules are then forgotten and the target is resolved again in the other
folder. What runs is taken from there, what judges from the base. Functions of the base keep their own globals; an
import inside of one of them, run later, finds the other module: ``gate.fingerprints`` sees a difference there.
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
    """Where a target's two halves come from: folders of projects, absolute."""

    judge: str
    kernels: str


class Apart(TargetError):
    """Two versions of a project cannot be told apart in one process: that says nothing of the kernels."""


@dataclass(frozen=True)
class Substituted:
    """A target whose kernels run in one project and are judged by another.

    Attributes:
        target: what is checked.
        missing: kernels, and block configurations as ``kernel, blocks=name``, that the judge has and the project lacks.
    """

    target: Target
    missing: tuple[str, ...]


def resolved(text: str, family: str | None, places: Places | None) -> Target:
    """A target, by one project or by two."""
    return resolve(text, family) if places is None else substituted(text, family, places).target


def substituted(text: str, family: str | None, places: Places) -> Substituted:
    """Resolve a target in both projects; the process stays in the folder of the kernels.

    Raises:
        TargetError: as ``resolve`` does; the sentence says in which project.
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
        raise Apart(f"it cannot be imported into one process with its base: {error}") from None
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
        raise TargetError(f"{text} holds none of the kernels {', '.join(missing)} any more")
    return Substituted(replace(judge, kernels=kernels, source=own.source), tuple(missing))


def _running(there: Kernel, judge: Kernel) -> Kernel:
    """What runs, under what the judge declares, by autograd or not, too; of block configurations those of both."""
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
    """Make a project's folder the current one, whose modules are found first, and forget those of the other."""
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
    """The modules that are loaded from a project, by name, each with its file, or the folder of one without."""
    found = []
    for name, module in list(sys.modules.items()):
        places = [getattr(module, "__file__", None)]
        with contextlib.suppress(Exception):
            places += list(getattr(module, "__path__", ()))
        if name.partition(".")[0] != "gradoracle":
            found += [(name, place) for place in places if isinstance(place, str) and is_source(place, folder)][:1]
    return found


def import_folders(folder: Path) -> list[str]:
    """The folders of a project that its modules are imported from: itself, and its ``src``."""
    return [str(place) for place in (folder, folder / "src") if place.is_dir()]
