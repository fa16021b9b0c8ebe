"""Compiling: what Triton compiles in this process, when, and how long that takes.

Compilation does not count against a call's time limit, and a run that is cut short reports where its time went. Of
processes that need the same compilation one makes it, and the others find it in Triton's cache.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gradoracle.model.job import Compilation, Phase

COMPILING = ", compiling "  # in the name of a phase: what comes behind it is the kernel
_METHOD = "_do_compile"  # of triton.JITFunction in every supported Triton: one kernel for one specialisation
_CLAIMS = "gradoracle.claims"  # a file in Triton's cache: whoever compiles has locked one byte of it
_MEMORY = 1 << 30  # bytes
_OFFSETS = 2**62  # a lock's offset is below 2^63


class Compiling:
    """Watches compilations after ``watch``.

    Attributes:
        seconds: the time of all.
        longest: the time of the longest since this was set to 0.
    """

    def __init__(self) -> None:
        self.seconds = self.longest = 0.0
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
    def compilation(self, kernel: str, claim: str = "") -> Iterator[None]:
        """While Triton compiles here, or the same in another process, the call's time limit does not apply.

        The time of another process is not counted.
        """
        call = self._call
        if call is not None:
            self._phase(f"{call[0]}{COMPILING}{kernel}", None)
        try:
            with claimed(claim):
                begun = time.monotonic()
                try:
                    yield
                finally:
                    taken = time.monotonic() - begun
                    self.seconds, self.longest = self.seconds + taken, max(self.longest, taken)
        finally:
            if call is not None:
                self._phase(*call)

    def begin(self, call: str, limit: float, phase: Phase) -> None:
        """A call of the kernel begins."""
        self._call, self._phase = (call, limit), phase

    def end(self) -> None:
        """It is back."""
        self._call = None


_watching: Compiling | None = None  # of this process
_is_rehearsed = False  # whether nothing is compiled now, whatever Triton is asked for


def _reporting(whole: Callable[..., Any]) -> Callable[..., Any]:
    """Triton's method, reporting to the watcher; installed once, however many runs a process has."""

    @functools.wraps(whole)
    def compiled(function: Any, *arguments: Any, **keywords: Any) -> Any:
        if _is_rehearsed:
            return whole(function, *arguments, **keywords)
        assert _watching is not None
        with _watching.compilation(getattr(function, "__name__", "a kernel"), _claim(function, arguments)):
            return whole(function, *arguments, **keywords)

    return compiled


def _claim(function: Any, arguments: tuple[Any, ...]) -> str:
    """The name of one compilation: the kernel's source, and all that it is specialised to."""
    source = getattr(function, "cache_key", None) or getattr(function, "__name__", "")
    return f"{source} {arguments[:1]}"


@contextmanager
def claimed(name: str) -> Iterator[None]:
    """While a compilation of this name runs, no other process begins it; where the cache cannot be written, any may.

    Another process that wants it waits, and then finds it in Triton's cache. A process that dies gives its claim up.
    """
    file = _claims()
    if file is None:
        yield
        return
    where = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % _OFFSETS
    try:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, where)
    except OSError:  # a file system without locks
        yield
        return
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, where)


@functools.lru_cache(maxsize=1)  # closing the file would give up every claim of this process
def _claims() -> int | None:
    """The file whose bytes are locked, in Triton's cache; None where it cannot be made."""
    try:
        from triton import knobs

        folder = knobs.cache.dir
        os.makedirs(folder, exist_ok=True)
        return os.open(os.path.join(folder, _CLAIMS), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except (ImportError, OSError):
        return None


@contextmanager
def rehearsing() -> Iterator[list[Compilation]]:
    """Within it kernels are neither compiled nor launched; afterwards the list has what Triton would compile for them.

    Their results are unwritten memory, of which this process gets a gibibyte more of its GPU: cases that are judged
    meanwhile need the rest. What this process has compiled already is left out.
    """
    from triton import knobs
    from triton.runtime.jit import JITFunction

    global _is_rehearsed
    found: dict[Compilation, None] = {}
    whole, hook = JITFunction.run, knobs.runtime.jit_cache_hook

    def unlaunched(function: Any, *arguments: Any, **keywords: Any) -> Any:
        return whole(function, *arguments, **{**keywords, "warmup": True})

    def noted(*, fn: Any, compile: Any, **_: Any) -> bool:
        found[Compilation(fn.module, fn.name, compile["specialization_data"])] = None
        return True  # Triton then compiles nothing

    JITFunction.run, knobs.runtime.jit_cache_hook, _is_rehearsed = unlaunched, noted, True
    listed: list[Compilation] = []
    try:
        with _with_little_memory():
            yield listed
    finally:
        JITFunction.run, knobs.runtime.jit_cache_hook, _is_rehearsed = whole, hook, False
        listed += found


@contextmanager
def _with_little_memory() -> Iterator[None]:
    if not torch.cuda.is_available():
        yield
        return
    whole = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + _MEMORY) / whole))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def compile_ahead(compilation: Compilation) -> float:
    """Make one compilation, for the processes that share Triton's cache: the seconds that it took."""
    from triton.runtime.jit import JITFunction

    function: Any = importlib.import_module(compilation.module)
    for part in compilation.function.split("."):
        function = getattr(function, part)
    begun = time.monotonic()
    if isinstance(function, JITFunction):
        function.preload(compilation.specialisation)
    return time.monotonic() - begun
