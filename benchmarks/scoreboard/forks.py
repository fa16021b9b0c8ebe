"""Forks: attempts that run in processes forked from this one, which has everything prepared, a few at a time.

If a fork dies or takes too long, its attempt decides whether to continue in another.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Protocol, TypeVar

from gradoracle.mutation.child import settle

Tell = Callable[..., None]


class Attempt(Protocol):
    """Work for forks: ``run`` is called in the fork, the other methods in its parent."""

    limit: float
    """Seconds without a message after which the fork counts as hanging."""

    def run(self, tell: Tell) -> None:
        """Do the remaining work, and ``tell`` the parent of each piece."""

    def take(self, *message: Any) -> None:
        """Receive what the fork told."""

    def lost(self, how: str) -> bool:
        """The fork died or hung; returns whether to start another."""


A = TypeVar("A", bound=Attempt)


@dataclass
class _Fork(Generic[A]):
    attempt: A
    process: int
    pipe: Connection
    deadline: float


def forked(attempts: Iterable[A], count: int) -> Iterator[A]:
    """Run attempts, ``count`` at a time, and yield each when it is done. Closing the iterator kills running forks."""
    source, running = iter(attempts), dict[Connection, _Fork[A]]()
    try:
        while True:
            while len(running) < count and (attempt := next(source, None)) is not None:
                _start(attempt, running)
            if not running:
                return
            soonest = min(fork.deadline for fork in running.values())
            ready = wait(list(running), timeout=max(0.0, soonest - time.monotonic()))
            for pipe in ready:
                fork = running[pipe]  # type: ignore[index]
                try:
                    message = pickle.loads(fork.pipe.recv_bytes())
                except (EOFError, OSError):
                    message = ("lost", "the process died")
                yield from _received(fork, message, running)
            for fork in [fork for fork in running.values() if fork.deadline < time.monotonic()]:
                if fork.pipe not in ready:
                    yield from _received(fork, ("lost", "took too long"), running)
    finally:
        for fork in list(running.values()):
            _end(fork, running)


def _received(fork: _Fork[A], message: tuple[Any, ...], running: dict[Connection, _Fork[A]]) -> Iterator[A]:
    """Pass a message to its attempt; yields the attempt if this was its last."""
    kind, *rest = message
    if kind == "told":
        fork.attempt.take(*rest)
        fork.deadline = time.monotonic() + fork.attempt.limit
        return
    _end(fork, running)
    if kind == "lost" and fork.attempt.lost(rest[0]):
        _start(fork.attempt, running)
    else:
        yield fork.attempt


def _start(attempt: A, running: dict[Connection, _Fork[A]]) -> None:
    ours, theirs = Pipe(duplex=False)
    gc.freeze()  # so that collection in the fork does not copy shared memory
    process = os.fork()
    if process == 0:
        _live(attempt, theirs)
    theirs.close()
    running[ours] = _Fork(attempt, process, ours, time.monotonic() + attempt.limit)


def _end(fork: _Fork[A], running: dict[Connection, _Fork[A]]) -> None:
    del running[fork.pipe]
    fork.pipe.close()
    with suppress(ProcessLookupError):
        os.kill(fork.process, signal.SIGKILL)
    os.waitpid(fork.process, 0)


def _live(attempt: Attempt, pipe: Connection) -> None:
    """Run an attempt in the fork; never returns."""

    def send(*message: Any) -> None:
        pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        settle()
        attempt.run(lambda *message: send("told", *message))
        send("over")
    except BaseException as error:
        with suppress(OSError):
            send("lost", f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)
