"""Location: the file and line of a kernel in the working tree."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradoracle.model.kernel import Kernel


@dataclass(frozen=True)
class Location:
    """A line of a file; ``file`` is relative to the root of the working tree, with forward slashes."""

    file: str
    line: int


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function: its signature without annotations and without the values of defaults.

    Attributes:
        names: in order.
        kinds: as ``inspect.Parameter`` numbers them.
        optional: whether they have a default.
    """

    names: tuple[str, ...]
    kinds: tuple[int, ...]
    optional: tuple[bool, ...]

    @property
    def signature(self) -> inspect.Signature:
        """The signature; each default is None."""
        kinds, empty = inspect._ParameterKind, inspect.Parameter.empty
        own = zip(self.names, self.kinds, self.optional, strict=True)
        return inspect.Signature([inspect.Parameter(n, kinds(k), default=None if o else empty) for n, k, o in own])


@dataclass(frozen=True)
class Place:
    """Where a function is defined.

    Attributes:
        module: the name of its module.
        name: its qualified name there.
        file: its file; "" where it has none.
        line: its first line.
        parameters: of it; None where they cannot be read.
    """

    module: str
    name: str
    file: str
    line: int
    parameters: Parameters | None = None


def location_of(kernel: Kernel, folder: Path | None = None) -> Location | None:
    """Where a kernel's callable is defined; None where that is not in the working tree around ``folder``.

    ``folder`` is the current one by default. Decorators, partials and instances with a ``__call__`` are unwrapped.
    """
    place = place_of(kernel.call)
    if not place.file:
        return None
    root = working_tree(Path.cwd() if folder is None else folder)
    try:
        file = Path(place.file).resolve().relative_to(root)
    except ValueError:
        return None
    return Location(file.as_posix(), _definition(place.file, place.line))


def working_tree(folder: Path) -> Path:
    """The folder at or above ``folder`` that holds a ``.git``; ``folder`` itself where none does."""
    folder = folder.resolve()
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)


def is_source(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it, but not in a Python environment there."""
    path = os.path.abspath(path)
    installed = path.startswith(os.path.abspath(sys.prefix) + os.sep) or "site-packages" in path.split(os.sep)
    return not installed and (path == folder or path.startswith(folder + os.sep))


def function_of(call: Callable[..., object]) -> Callable[..., object]:
    """The function behind a callable: partials, wrappers and methods are unwrapped."""
    while isinstance(call, functools.partial):
        call = call.func
    call = inspect.unwrap(call)
    if not hasattr(call, "__code__"):
        call = inspect.unwrap(type(call).__call__)
    return getattr(call, "__func__", call)


def place_of(function: Callable[..., object]) -> Place:
    """Where a function is defined, partials and wrappers undone; of one elsewhere, where it is there."""
    known = getattr(function, "place", None)
    if isinstance(known, Place):
        return known
    own = function_of(function)
    code = getattr(own, "__code__", None)
    file, line = ("", 0) if code is None else (code.co_filename, code.co_firstlineno)
    module, name = getattr(own, "__module__", None), getattr(own, "__qualname__", None)
    return Place(str(module or ""), str(name or ""), file, line, _parameters(function))


def _parameters(function: Callable[..., object]) -> Parameters | None:
    try:
        own = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    optional = tuple(p.default is not p.empty for p in own)
    return Parameters(tuple(p.name for p in own), tuple(int(p.kind) for p in own), optional)


def _definition(file: str, first: int) -> int:
    """The line of ``def``: the code of a decorated function begins at its first decorator."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return first
    for number, line in enumerate(lines[first - 1 :], first):
        if line.lstrip().startswith(("def ", "async def ", "class ")):
            return number
        if not line.strip() and number > first:
            break
    return first


def shown(file: str) -> str:
    """A path as reports show it: relative to the current folder, where it lies in it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
