"""Called functions: those of a folder that kernel calls run, interpreted kernels included."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from gradoracle.execution.interpreter import launch_hooks


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
        before, outer = sys.getprofile(), launch_hooks.called
        launch_hooks.called = self._codes
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(before)
            launch_hooks.called = outer

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
