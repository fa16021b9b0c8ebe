"""The record that launches are entered in now, where there is one: what every launch and access asks for first.

And who watches launches: told the function, its arguments by name, which of them are constants, and the options; and
where the code that is called is noted, by a profiler that the interpreter is spared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any, Protocol

from gradoracle.execution.interpreter.values import Array


class Recorder(Protocol):
    """What launches and accesses are entered in (``record.Record``)."""

    def begin(self, fn: Callable[..., Any], grid: Sequence[int], given: Any, values: dict[str, Any]) -> None:
        """A launch begins."""

    def end(self) -> None:
        """It is over."""

    def attempt(self, programs: Sequence[tuple[int, int, int]]) -> None:
        """These programs run now."""

    def barrier(self) -> None:
        """They pass a barrier."""

    def load(self, addresses: Array, on: Array | None, width: int) -> tuple[Array, Array | None]:
        """They read; what may be read of it."""

    def store(self, addresses: Array, on: Array | None, width: int) -> tuple[Array, Array | None]:
        """They write; what may be written of it."""

    def atomic(self, addresses: Array, on: Array | None, width: int) -> tuple[Array, Array | None]:
        """They read and write at once."""

    def loaded(self, addresses: Array, bits: Array) -> None:
        """What they have read."""


record: Recorder | None = None
watch: Callable[[Callable[..., Any], Mapping[str, Any], Collection[str], Mapping[str, Any]], None] | None = None
called: set[CodeType] | None = None


@contextmanager
def unwatched(launched: CodeType) -> Iterator[None]:
    """Note a kernel that is launched where calls are noted, and nothing that its interpreter calls."""
    if called is None:
        yield
        return
    called.add(launched)
    profiler = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(profiler)
