"""Process: one worker process, as its parent sees it (``Process``) and as it runs itself (``serve``)."""

from __future__ import annotations

import contextlib
import pickle
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from gradoracle.execution.child import Child
from gradoracle.execution.executor import Crash, Result
from gradoracle.host import lifeline as lifelines
from gradoracle.model.errors import first_line
from gradoracle.model.job import Phase

Work = Callable[[Any, Phase], Any]

NOTHING = object()  # the job of an idle process

_FOREVER = float("inf")
_STARTUP_LIMIT = 600.0  # seconds that ``entry(setup)`` may take


class Process(Child):
    """A worker process as its parent sees it: its job and the phase that it announced."""

    def __init__(
        self,
        entry: str,
        setup: Any,
        env: Mapping[str, str],
        memory: int | None = None,
        turn: int = 0,
        folder: str | None = None,
    ):
        self.turn = turn  # its number among the parent's children; a replacement has the same
        message = pickle.dumps((entry, setup), pickle.HIGHEST_PROTOCOL)
        serve = f"serve({memory}, *map(int, sys.argv[1:]))"
        program = f"import sys; from gradoracle.execution.process import serve; {serve}"
        super().__init__(program, env, folder, "gradoracle-work")
        self.connection = Connection(self.socket.detach())
        self.started, self.taken = False, False
        self.job: Any = NOTHING
        self.phase: str | None = None
        self.since, self.limit = time.monotonic(), _STARTUP_LIMIT
        self.entered = self.since
        self.deadline = self.since + self.limit
        with contextlib.suppress(OSError):  # a child that is already dead is found by the next check
            self.connection.send_bytes(message)

    def start(self) -> None:
        """Its ``entry(setup)`` has returned: it can take jobs."""
        self.started = True
        self.rest()

    def take(self, job: Any, message: bytes) -> None:
        """Send it a job (``message`` is the pickled job). Raises OSError where the process is dead."""
        self.forget_output()
        self.connection.send_bytes(message)
        self.job, self.taken, self.since = job, False, time.monotonic()
        self.entered = self.since

    def enter(self, phase: str | None, limit: float | None, at: float) -> None:
        """It announced a phase of at most ``limit`` seconds, at time ``at`` of the system's monotonic clock."""
        self.phase, self.entered = phase, at
        self.limit = _FOREVER if limit is None else limit
        self.deadline = at + self.limit

    def rest(self) -> None:
        """It has no job."""
        self.job, self.phase, self.limit, self.deadline = NOTHING, None, _FOREVER, _FOREVER

    def end(self, keep_output: bool = False) -> None:
        """Kill the process and everything it started; may be called twice."""
        super().end(keep_output)
        self.connection.close()


def attempt(work: Work, job: Any, announce: Phase) -> tuple[Result, bool]:
    """Do one job: its result without job and seconds, and whether the process is fit for another.

    Args:
        work: the function that does it.
        job: the job.
        announce: called with each phase as it begins.
    """
    inside: str | None = None

    def phase(name: str | None, limit: float | None) -> None:
        nonlocal inside
        inside = name
        announce(name, limit)

    try:
        return Result(None, work(job, phase)), True
    except BaseException as error:
        is_fit = isinstance(error, Exception)
        if inside is None:
            return Result(None, error=traceback.format_exc(), sentence=first_line(error)), is_fit
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            return Result(None, crash=Crash(inside, f"exited with code {code}", "exit")), is_fit
        return Result(None, crash=Crash(inside, f"raised {type(error).__name__}: {error}", "exception")), is_fit


def serve(memory: int | None, channel: int, lifeline: int) -> None:
    """The main loop of a child: answer jobs from the socket ``channel`` until it closes.

    Args:
        memory: bytes beyond which an allocation fails; None: no limit.
        channel: file descriptor of the child's end of the socket pair.
        lifeline: read end of a pipe whose write end only the parent holds.
    """
    lifelines.begin(memory, channel, lifeline)
    connection = Connection(channel)

    def tell(*message: Any) -> None:
        try:
            content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        except Exception:
            lost = Result(None, error=f"the result of a job cannot be sent:\n{traceback.format_exc()}")
            content = pickle.dumps(("ended", lost, True))
        connection.send_bytes(content)

    def announce(name: str | None, limit: float | None) -> None:
        tell("phase", name, limit, time.monotonic())

    code = 0
    try:
        entry, setup = pickle.loads(connection.recv_bytes())
        try:
            work: Work = lifelines.load(entry)(setup)
        except Exception as error:
            tell("failed", traceback.format_exc(), first_line(error))
            return
        tell("started")
        is_fit = True
        while is_fit:
            message = connection.recv_bytes()
            tell("taken")
            result, is_fit = attempt(work, pickle.loads(message), announce)
            tell("ended", result, is_fit)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent has closed the socket and expects no answer
    except BaseException:
        traceback.print_exc()
        code = lifelines.FAILED
    finally:
        lifelines.end(code)
