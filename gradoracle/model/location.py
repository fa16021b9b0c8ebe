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


def location_of(kernel: Kernel, folder: Path | None = None) -> Location | None:
    """Where a kernel's callable is defined; None where that is not in the working tree around ``folder``.

    ``folder`` is the current one by default. Decorators, partials and instances with a ``__call__`` are unwrapped.
    """
    code = getattr(function_of(kernel.call), "__code__", None)
    if code is None:
        return None
    root = working_tree(Path.cwd() if folder is None else folder)
    try:
        file = Path(code.co_filename).resolve().relative_to(root)
    except ValueError:
        return None
    return Location(file.as_posix(), _definition(code.co_filename, code.co_firstlineno))


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
