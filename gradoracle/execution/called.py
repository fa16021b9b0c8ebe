"""Called: the functions of a folder that a kernel's calls run, its interpreted kernels among them."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from gradoracle.execution.interpreter import current


class Called:
    """Notes what runs while it watches; what an interpreted kernel calls is not seen, which takes too long.

    Args:
        folder: functions of files below it count, wherever links to them lie.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.realpath(folder)
        self._codes: set[CodeType] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread."""
        before, outer = sys.getprofile(), current.called
        current.called = self._codes
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(before)
            current.called = outer

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._codes.add(frame.f_code)

    def take(self) -> tuple[str, ...]:
        """What ran since the last time, as "file:line" of the first line of each function, in order."""
        found = {place for code in self._codes if (place := _place(code, self._folder)) is not None}
        self._codes.clear()
        return tuple(sorted(found))


@functools.cache
def _place(code: CodeType, folder: str) -> str | None:
    file = os.path.realpath(code.co_filename)
    if not file.startswith(folder + os.sep):
        return None
    return f"{os.path.relpath(file, folder)}:{code.co_firstlineno}"
