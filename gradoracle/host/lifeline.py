"""Lifeline: how a child process that runs kernels begins and ends: with its parent, however that ends."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import importlib
import os
import resource
import signal
import sys
from typing import Any, NoReturn

FAILED = 70  # the exit code of a child that fails itself


def begin(memory: int | None, channel: int, lifeline: int) -> None:
    """What a child does first: it leaves no core file, keeps its limit of memory, and dies with its parent.

    Args:
        memory: bytes beyond which an allocation fails; None: no limit.
        channel: descriptor of its end of the socket to its parent.
        lifeline: read end of a pipe whose write end only the parent holds.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # it leads a session, which Ctrl-C does not reach
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory is not None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (memory if hard < 0 else min(memory, hard), hard))
    faulthandler.enable()
    for descriptor in (channel, lifeline):
        os.set_inheritable(descriptor, False)
    _die_with_parent(lifeline)


def end(code: int) -> NoReturn:
    """Exit, without the clean-up of libraries, which a kernel may have broken."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code)


def load(entry: str) -> Any:
    """Import ``"package.module:function"``."""
    module, _, function = entry.partition(":")
    return getattr(importlib.import_module(module), function)


def _die_with_parent(lifeline: int) -> None:
    """Let the system end this process, and its group if it leads one, when the parent's end of a pipe closes."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # which is: terminate
    own = os.getpid()
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -own if os.getpgrp() == own else own)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
