"""Child: how a process begins that was forked to run a mutant."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
from contextlib import suppress

PR_SET_PDEATHSIG = 1


def settle() -> None:
    """Print nothing, and die with the parent: what a mutant prints, and the stack of one that dies, is noise."""
    faulthandler.disable()
    with open(os.devnull, "wb") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
