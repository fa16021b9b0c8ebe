"""Compilations that are kept: what was read off one, by its source and by its TTIR, wherever these stand.

The passes from TTIR on take most of the time of a compilation, and see neither lines of source nor names of values.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gradoracle.model import cache


class Again(Exception):
    """Raised inside a compilation whose TTIR came up before, with what is kept of it."""


class Kept:
    """What was read off compilations, in the cache by what they were of and all that the passes depend on.

    Args:
        reader: the file that reads it off.
        asked: what else that depends on.
    """

    def __init__(self, reader: str, asked: str) -> None:
        import triton
        from triton._C import libtriton
        from triton.backends.nvidia import compiler

        built = os.stat(libtriton.__file__)
        passes = [Path(str(file)).read_text("utf-8") for file in (compiler.__file__, __file__, reader)]
        settings = sorted(libtriton.get_cache_invalidating_env_vars().items())
        self._common = cache.digest(triton.__version__, built.st_size, built.st_mtime_ns, passes, settings, asked)
        self.said: list[str] = []
        self._cache = cache.Cache("compiled", cache.folder(), self.said.append)
        self._source = self._ttir = ""
        self._marks: dict[str, str] = {}

    def look_up_source(self, compilation: Any, capability: int) -> Mapping[str, Any] | None:
        """What is kept of a compilation from the very same source at the same place; None: it is to be compiled."""
        _, function, *arguments = compilation
        written = function.cache_key, _written(function), capability
        try:
            self._source = cache.digest(self._common, written, *(sorted(part.items()) for part in arguments))
        except TypeError:  # constants that are no plain values, a function say, are known by their TTIR alone
            self._source = ""
        found: Mapping[str, Any] | None = self._cache.read(self._source) if self._source else None
        return found

    def look_up(self, module: Any, target: str) -> None:
        """Note what TTIR a compilation has come to, for a target and options. Raises Again where it came up before.

        Marks stand for the places and names of its source, in the order in which it lists them.
        """
        text = str(module)
        listed = "\n".join(line for line in text.splitlines() if line.startswith("#loc"))
        self._marks = {place: f"<@{i}>" for i, place in enumerate(dict.fromkeys(_QUOTED.findall(listed)))}
        lines = (_marked(line, self._marks) if line.startswith("#loc") else line for line in text.splitlines())
        self._ttir = cache.digest(self._common, target, *lines)
        if (found := self._cache.read(self._ttir)) is not None:
            found = _placed(found, functools.partial(_unmarked, {mark: place for place, mark in self._marks.items()}))
            self._keep_by_source(found)
            raise Again(found)

    def keep(self, found: dict[str, Any]) -> None:
        """Keep what was read off the module with which that compilation ended."""
        self._cache.write(self._ttir, _placed(found, functools.partial(_marked, marks=self._marks)))
        self._keep_by_source(found)

    def _keep_by_source(self, found: dict[str, Any]) -> None:
        if self._source:
            self._cache.write(self._source, found)


def _written(function: Any) -> list[tuple[str, int]]:
    """Where a @triton.jit function stands, and those that it calls: its key says what they do, and not where."""
    found: dict[int, tuple[str, int]] = {}
    left = [function]
    while left:
        each = left.pop().fn
        if id(each) not in found:
            code, scope = each.__code__, each.__globals__
            found[id(each)] = (code.co_filename, code.co_firstlineno)
            named = [scope[name] for name in code.co_names if name in scope]
            named += [getattr(one, name, None) for one in named if inspect.ismodule(one) for name in code.co_names]
            left += [one for one in named if isinstance(one, type(function))]
    return sorted(set(found.values()))


_QUOTED = re.compile(r'"[^"]*"(?::\d+:\d+)?')  # a name, or a file with a line and a column
_MARK = re.compile(r"<@\d+>")


def _marked(text: str, marks: Mapping[str, str]) -> str:
    """A text with marks for names and places."""
    return _QUOTED.sub(lambda found: marks.get(found[0], found[0]), text)


def _unmarked(names: Mapping[str, str], text: str) -> str:
    """A text with the names and places that marks stand for."""
    return _MARK.sub(lambda found: names.get(found[0], found[0]), text)


def _placed(found: Mapping[str, Any], at: Callable[[str], str]) -> dict[str, Any]:
    """What was read off a compilation, its origins elsewhere."""
    shapes = {at(origin): every for origin, every in found["shapes"].items()}
    return {**found, "origins": [at(origin) for origin in found["origins"]], "shapes": shapes}
