"""Compiling: the time that Triton spends compiling in this process, and the kernel that it compiles now.

Compilation does not count against a call's time limit, and a run that is cut short reports where its time went.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gradoracle.execution.process import Phase

_METHOD = "_do_compile"  # of triton.JITFunction in every supported Triton: one kernel for one specialisation


class Compiling:
    """Watches compilations after ``watch``.

    Attributes:
        seconds: the time they took.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._call: tuple[str, float] | None = None  # the kernel call that is running, and its limit
        self._phase: Phase = lambda name, limit: None

    def watch(self) -> None:
        """Make Triton report compilations to this watcher and no other, if it is installed and has the method."""
        global _watching
        try:
            from triton.runtime.jit import JITFunction
        except ImportError:
            return
        whole: Callable[..., Any] | None = getattr(JITFunction, _METHOD, None)
        if whole is None:
            return
        if _watching is None:
            setattr(JITFunction, _METHOD, _reporting(whole))
        _watching = self

    @contextmanager
    def compilation(self, kernel: str) -> Iterator[None]:
        """While Triton compiles, the call's time limit does not apply."""
        begun, call = time.monotonic(), self._call
        if call is not None:
            self._phase(f"{call[0]}, compiling {kernel}", None)
        try:
            yield
        finally:
            self.seconds += time.monotonic() - begun
            if call is not None:
                self._phase(*call)

    def begin(self, call: str, limit: float, phase: Phase) -> None:
        """A call of the kernel begins."""
        self._call, self._phase = (call, limit), phase

    def end(self) -> None:
        """It is back."""
        self._call = None


_watching: Compiling | None = None  # of this process


def _reporting(whole: Callable[..., Any]) -> Callable[..., Any]:
    """Triton's method, reporting to the watcher; installed once, however many runs a process has."""

    @functools.wraps(whole)
    def compiled(function: Any, *arguments: Any, **keywords: Any) -> Any:
        assert _watching is not None
        with _watching.compilation(getattr(function, "__name__", "a kernel")):
            return whole(function, *arguments, **keywords)

    return compiled
