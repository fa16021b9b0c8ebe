"""Launch hooks, global: the current record of accesses, the watcher of launches, and the set of called code.

The watcher is called with the function, its arguments by name, the names of constants, and the options. Called code is
noted by a profiler, which is switched off inside the interpreter.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CodeType, FrameType
from typing import Any, Protocol

from gradoracle.host.interpreter.values import Array


class Recorder(Protocol):
    """A record of launches and accesses (``record.AccessRecord``)."""

    def begin(self, fn: Callable[..., Any], grid: Sequence[int], given: Any, values: dict[str, Any]) -> None:
        """A launch begins."""

    def end(self) -> None:
        """The launch ends."""

    def attempt(self, programs: Sequence[tuple[int, int, int]]) -> None:
        """These programs start."""

    def barrier(self) -> None:
        """The programs pass a barrier."""

    def exchange(self) -> None:
        """The threads of the running programs exchange values."""

    def load(self, addresses: Array, on: Array | None, width: int) -> tuple[Array, Array | None]:
        """A load: plain addresses, and which of them lie outside, if any."""

    def store(self, addresses: Array, on: Array | None, width: int) -> tuple[Array, Array | None]:
        """A store, as ``load``."""

    def atomic(self, addresses: Array, on: Array | None, width: int) -> tuple[Array, Array | None]:
        """An atomic operation, as ``load``."""

    def loaded(self, addresses: Array, bits: Array) -> None:
        """The bits that a load returned."""


record: Recorder | None = None
watch: Callable[[Callable[..., Any], Mapping[str, Any], Collection[str], Mapping[str, Any]], None] | None = None
called: set[CodeType] | None = None
unclaimed: Callable[[], AbstractContextManager[Any]] = nullcontext
"""Within it tensors say where they are, also while CUDA is claimed (claimed_cuda.py)."""


def exchanging(operation: Callable[..., Any]) -> Callable[..., Any]:
    """An operation that needs values of other threads; it is reported to the current record."""

    @functools.wraps(operation)
    def exchanged(*args: Any, **kwargs: Any) -> Any:
        if record is not None:
            record.exchange()
        return operation(*args, **kwargs)

    return exchanged


ieee_dots = False


@contextmanager
def dots_in_ieee(wanted: bool = True) -> Iterator[None]:
    """Interpret every `tl.dot` on float32 with input_precision="ieee"; `wanted`: False changes nothing."""
    global ieee_dots
    before, ieee_dots = ieee_dots, ieee_dots or wanted
    try:
        yield
    finally:
        ieee_dots = before


@contextmanager
def unwatched(launched: CodeType) -> Iterator[None]:
    """If calls are noted, note the launched kernel and nothing that its interpreter calls."""
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


class CalledFunctions:
    """Notes the functions that run while it watches; calls within interpreted kernels are not followed (too slow).

    Args:
        folder: functions of files below it count, wherever links to them are.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.realpath(folder)
        self._codes: set[CodeType] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread."""
        global called
        before, outer = sys.getprofile(), called
        called = self._codes
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(before)
            called = outer

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._codes.add(frame.f_code)

    def take(self) -> tuple[str, ...]:
        """The functions that ran since the last call, as "file:line" of their first lines, sorted."""
        found = {place for code in self._codes if (place := _place(code, self._folder)) is not None}
        self._codes.clear()
        return tuple(sorted(found))


@functools.cache
def _place(code: CodeType, folder: str) -> str | None:
    file = os.path.realpath(code.co_filename)
    if not file.startswith(folder + os.sep):
        return None
    return f"{os.path.relpath(file, folder)}:{code.co_firstlineno}"
