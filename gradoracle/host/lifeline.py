"""Lifeline: a process that ends when its parent does, however that ends, even in a kernel that hangs."""

from __future__ import annotations

import fcntl
import os
import signal


def die_with_parent(lifeline: int) -> None:
    """Let the system end this process, and its group if it leads one, when the parent's end of a pipe closes."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # which is: terminate
    own = os.getpid()
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -own if os.getpgrp() == own else own)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
