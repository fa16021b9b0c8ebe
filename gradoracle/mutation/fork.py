"""Fork: a child process that runs a mutant, with everything loaded that its parent has."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import pickle
import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

PR_SET_PDEATHSIG = 1
Send = Callable[..., None]
T = TypeVar("T")


class Lost(Exception):
    """A fork ended before its work; says how."""


class Raised(Lost):
    """The work raised an error."""


class Fork:
    """A process forked from this one.

    Args:
        work: runs in the fork. It gets a function that sends a message: any values that can be pickled.

    Attributes:
        pipe: where messages arrive.
    """

    def __init__(self, work: Callable[[Send], object]) -> None:
        self.pipe, theirs = Pipe(duplex=False)
        gc.freeze()  # so that the fork does not copy shared objects to count them
        self._process = os.fork()
        if self._process == 0:
            _live(work, theirs)
        theirs.close()

    def receive(self, deadline: float) -> tuple[Any, ...] | None:
        """Wait for the next message until a time of the monotonic clock; None: the work is done.

        Raises:
            TimeoutError: there is none.
            Lost: the process died, or the work raised an error.
        """
        if not self.pipe.poll(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        try:
            kind, *message = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            raise Lost("the process died") from None
        if kind == "raised":
            raise Raised(message[0])
        return tuple(message) if kind == "sent" else None

    def close(self) -> None:
        """Kill the process if it still runs."""
        self.pipe.close()
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


def _live(work: Callable[[Send], object], pipe: Connection) -> None:
    """The whole life of a fork; never returns."""

    def send(*message: Any) -> None:
        pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    try:
        _settle()
        work(lambda *message: send("sent", *message))
        send("done")
    except BaseException as error:
        with suppress(OSError):
            send("raised", f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)


def _settle() -> None:
    """Print nothing, and die with the parent: what a mutant prints, and the stack of one that dies, is noise."""
    faulthandler.disable()
    with open(os.devnull, "wb") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def answer(work: Callable[[], T], seconds: float) -> T:
    """The result of some work in a fork.

    Raises:
        TimeoutError: it takes longer than so many seconds.
        Lost: the process died, or the work raised an error.
    """
    with closing(Fork(lambda send: send(work()))) as fork:
        message = fork.receive(time.monotonic() + seconds)
    assert message is not None
    found: T = message[0]
    return found
