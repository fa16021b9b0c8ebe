"""Local pool: worker processes on this machine. A hang, a segfault or an exit of a kernel is a result, not the end.

A child inherits nothing but the environment, ``sys.path`` and the working directory, so CUDA is safe. Jobs and results
are pickled by value through a socket pair; a child's output goes to a file of its own.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import subprocess
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from gradoracle.execution import environment
from gradoracle.execution.executor import LATER, Crash, Result, StartupError
from gradoracle.execution.process import NOTHING, Process

_TICK = 0.2  # seconds between checks for children that died without closing their socket


class LocalPool:
    """A pool of child processes that run one job at a time each.

    In each child ``entry(setup)`` is called once and returns ``work(job, phase)``. The work calls
    ``phase(name, limit)`` before a kernel runs (limit in seconds, or None) and ``phase(None, None)`` when it is back.

    Args:
        entry: ``"package.module:function"``, imported in the child.
        setup: picklable; passed to ``entry``.
        count: how many processes, from 1 on.
        env: variables that the children have before they import anything; several sets are dealt out in turn, and the
            replacement of a dead child gets its set.
        memory: bytes beyond which an allocation of a child fails; None: no limit.
        folder: the working directory of the children; None: that of this process.
    """

    def __init__(
        self,
        entry: str,
        setup: Any,
        *,
        count: int,
        env: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
        memory: int | None = None,
        folder: str | None = None,
    ):
        self._children: list[Process] = []
        if count < 1:
            raise ValueError(f"count of worker processes must be at least 1, got {count}")
        self._entry, self._setup = entry, setup
        self._envs = [dict(each) for each in ([env] if isinstance(env, Mapping) else env or [{}])]
        self._memory, self._folder = memory, folder
        self._ready: deque[Result] = deque()
        self._again: deque[Any] = deque()  # jobs whose process died before it read them
        self._running = False
        self._startup_deaths = 0
        self._count = count
        try:
            self._fill()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    @property
    def in_order(self) -> bool:
        """Whether results come in the order of the jobs: from one process they do."""
        return self._count <= 1

    @property
    def shares_compilations(self) -> bool:
        """Whether processes find each other's compilations: there are several, with one cache."""
        return self._count > 1

    def run(self, jobs: Iterable[Any], until: float = math.inf) -> Iterator[Result]:
        """Run jobs, pulled as processes become free; results in order of completion.

        Jobs that still run are killed when the iterator is left early, and at the time ``until`` of the monotonic
        clock: then they are crashes of the kind "stopped". After ``LATER`` the next is asked for once one has ended.

        Raises:
            StartupError: no process can be started.
            RuntimeError: another ``run`` is not finished.
        """
        if self._running:
            raise RuntimeError("these workers are in the middle of another run")
        source = iter(jobs)
        self._running, exhausted = True, False
        try:
            while True:
                while not exhausted and not self._again and (child := self._idle()) is not None:
                    try:
                        job = next(source)
                    except StopIteration:
                        exhausted = True
                    else:
                        if job is LATER:
                            break
                        self._start(child, job)
                if self._ready:
                    yield self._ready.popleft()
                elif exhausted and not self._again and not self._busy():
                    return
                elif time.monotonic() > until:
                    exhausted = True
                    self._again.clear()
                    for child in self._busy():
                        self._stop(child)
                else:
                    if not exhausted:
                        self._fill()
                    self._pump()
        finally:
            self._running = False
            self._ready.clear()
            self._again.clear()
            for child in self._busy():
                self._discard(child)

    def run_alone(self, job: Any) -> Result:
        """Run one job while no other runs; a ``run`` that goes on keeps the results that arrive meanwhile."""
        self._fill()  # replacements of dead children start while this job runs
        while self._busy() or self._again:
            self._pump()
        while (child := self._idle()) is None:
            self._fill()
            self._pump()
        before = len(self._ready)
        self._start(child, job)
        while len(self._ready) == before:
            self._pump()
        return self._ready.pop()

    def memory(self) -> tuple[int, str]:
        """Bytes that a case may use: those of this machine."""
        return environment.memory(), "here"

    def environment(self) -> dict[str, str]:
        """This machine, with as many of its GPUs as the processes use."""
        return environment.describe("auto", max(1, min(self._count, len(self._envs))))

    def close(self) -> None:
        """End every child: idle ones exit by themselves, the others are killed."""
        for child in self._children:
            if child.job is NOTHING and child.started:
                child.connection.close()  # the child reads the end of its socket
        deadline = time.monotonic() + 2.0
        for child in self._children:
            if child.job is NOTHING and child.started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(max(0.0, deadline - time.monotonic()))
            child.end()
        self._children.clear()

    def _fill(self) -> None:
        while len(self._children) < self._count:
            turn = min(set(range(self._count)) - {child.turn for child in self._children})
            env = self._envs[turn % len(self._envs)]
            self._children.append(Process(self._entry, self._setup, env, self._memory, turn, self._folder))

    def _stop(self, child: Process) -> None:
        """Kill a child during its job, whose result is no longer needed."""
        now = time.monotonic()
        how = f"was stopped after {now - child.since:.0f} s"
        self._finish(child, Result(None, crash=Crash(child.phase, how, "stopped", seconds=now - child.entered)))
        self._discard(child)

    def _idle(self) -> Process | None:
        return next((child for child in self._children if child.started and child.job is NOTHING), None)

    def _busy(self) -> list[Process]:
        return [child for child in self._children if child.job is not NOTHING]

    def _discard(self, child: Process) -> None:
        child.end()
        self._children.remove(child)

    def _start(self, child: Process, job: Any) -> None:
        """Give a job to an idle child; if that child has died meanwhile, the job waits for a new one."""
        try:
            message = pickle.dumps(job, pickle.HIGHEST_PROTOCOL)
        except Exception:
            self._ready.append(Result(job, error=traceback.format_exc()))
            return
        try:
            child.take(job, message)
        except OSError:
            self._discard(child)
            self._again.append(job)

    def _pump(self) -> None:
        """Wait for an event, read all messages, and kill children that are past their limit."""
        if self._again:
            self._fill()
            if (idle := self._idle()) is not None:
                self._start(idle, self._again.popleft())
                return
        now = time.monotonic()
        timeout = min([_TICK, *(max(0.0, child.deadline - now) for child in self._children)])
        speaking = wait([child.connection for child in self._children], timeout)
        for child in list(self._children):
            while child in self._children and child.connection in speaking and self._poll(child):
                self._receive(child)
        for child in list(self._children):
            child.cut_output()
            if child.process.poll() is not None and not self._poll(child):
                self._bury(child)
            elif time.monotonic() > child.deadline and not child.connection.poll(0.05):
                self._bury(child, past_limit=True)

    def _poll(self, child: Process) -> bool:
        try:
            return child.connection.poll(0)
        except OSError:
            return False

    def _receive(self, child: Process) -> None:
        """Read one message of a child; an end of file or an unreadable message means that the child is lost."""
        try:
            kind, *rest = pickle.loads(child.connection.recv_bytes())
        except (EOFError, OSError):
            self._bury(child)
            return
        except Exception:
            self._finish(child, Result(None, error=f"the result of a worker cannot be read:\n{traceback.format_exc()}"))
            self._discard(child)
            return
        if kind == "phase":
            child.enter(*rest)
        elif kind == "started":
            child.start()
            self._startup_deaths = 0
        elif kind == "failed":
            self.close()
            raise StartupError(*rest)
        elif kind == "taken":
            child.taken = True
        else:
            result, is_fit = rest
            if result.crash is not None:
                result = replace(result, crash=replace(result.crash, output=child.output()))
            self._finish(child, result)
            if not is_fit:
                self._discard(child)

    def _finish(self, child: Process, result: Result) -> None:
        if child.job is not NOTHING:
            self._ready.append(replace(result, job=child.job, seconds=time.monotonic() - child.since))
        child.rest()

    def _bury(self, child: Process, past_limit: bool = False) -> None:
        """Record how a child died (or kill it, past its limit); its job, if any, has crashed."""
        kind, how = "time limit", f"exceeded its time limit of {child.limit:g} s"
        if not past_limit:
            kind, how = child.death()
        child.end(keep_output=True)
        output = child.output()
        if child.job is not NOTHING and not child.taken:
            self._again.append(child.job)
            child.rest()
        self._finish(child, Result(None, crash=Crash(child.phase, how, kind, output)))
        self._discard(child)
        if not child.started:
            self._startup_deaths += 1
            if self._startup_deaths > 1:
                self.close()
                sentence = f"a worker process ended while it started: {how}"
                raise StartupError(sentence + (f":\n{output}" if output else ""), sentence)
