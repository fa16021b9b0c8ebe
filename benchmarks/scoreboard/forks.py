"""Forks: attempts that run in processes forked from this one, which has everything prepared, a few at a time.

If a fork dies or takes too long, its attempt decides whether to continue in another.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Protocol, TypeVar

from gradoracle.mutation.fork import Fork, Lost, Send


class Attempt(Protocol):
    """Work for forks: ``run`` is called in the fork, the other methods in its parent."""

    limit: float
    """Seconds without a message after which the fork counts as hanging."""

    def run(self, tell: Send) -> None:
        """Do the remaining work, and ``tell`` the parent of each piece."""

    def take(self, *message: Any) -> None:
        """Receive what the fork told."""

    def lost(self, how: str) -> bool:
        """The fork died or hung; returns whether to start another."""


A = TypeVar("A", bound=Attempt)


@dataclass
class _Running(Generic[A]):
    attempt: A
    fork: Fork
    deadline: float


def forked(attempts: Iterable[A], count: int) -> Iterator[A]:
    """Run attempts, ``count`` at a time, and yield each when it is done. Closing the iterator kills running forks."""
    source, running = iter(attempts), dict[Connection, _Running[A]]()
    try:
        while True:
            while len(running) < count and (attempt := next(source, None)) is not None:
                _start(attempt, running)
            if not running:
                return
            soonest = min(each.deadline for each in running.values())
            ready = wait(list(running), timeout=max(0.0, soonest - time.monotonic()))
            late = [each.fork.pipe for each in running.values() if each.deadline < time.monotonic()]
            for pipe in dict.fromkeys((*ready, *late)):
                yield from _received(running[pipe], running)  # type: ignore[index]
    finally:
        for each in running.values():
            each.fork.close()


def _received(each: _Running[A], running: dict[Connection, _Running[A]]) -> Iterator[A]:
    """Pass a message to its attempt; yields the attempt if this was its last."""
    how = ""
    try:
        message = each.fork.receive(0.0)
    except TimeoutError:
        message, how = None, "took too long"
    except Lost as error:
        message, how = None, str(error)
    if message is not None:
        each.attempt.take(*message)
        each.deadline = time.monotonic() + each.attempt.limit
        return
    del running[each.fork.pipe]
    each.fork.close()
    if how and each.attempt.lost(how):
        _start(each.attempt, running)
    else:
        yield each.attempt


def _start(attempt: A, running: dict[Connection, _Running[A]]) -> None:
    def run(tell: Send) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        attempt.run(tell)

    fork = Fork(run)
    running[fork.pipe] = _Running(attempt, fork, time.monotonic() + attempt.limit)
