"""Process: one worker process, as its parent sees it (``Process``) and as it runs itself (``serve``)."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import importlib
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any

from gradoracle.execution import fork_server
from gradoracle.execution.executor import Crash, Result
from gradoracle.model.errors import first_line
from gradoracle.model.job import Phase

Work = Callable[[Any, Phase], Any]

NOTHING = object()  # the job of an idle process

_FOREVER = float("inf")
_TAIL = 4000  # bytes of a dead child's output that are kept
_OUTPUT_LIMIT = 1 << 26  # bytes a child may print in one job before all but the end of its file is freed
_BLOCK = 512  # bytes, of ``st_blocks``
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of Linux's fallocate


class Poisoned(Exception):
    """Raised by work whose process is no longer usable (a sticky CUDA error): its value is kept, the process replaced.

    Args:
        how: the event in words.
        value: the part of the job's value that was known before.
    """

    def __init__(self, how: str, value: Any = None):
        super().__init__(how, value)
        self.how, self.value = how, value


class Process:
    """One child process as its parent sees it: socket, output file, job and announced phase."""

    def __init__(
        self,
        entry: str,
        setup: Any,
        env: Mapping[str, str],
        startup_limit: float,
        memory: int | None = None,
        turn: int = 0,
        folder: str | None = None,
    ):
        self.turn = turn  # its number among the parent's children; a replacement has the same
        message = pickle.dumps((entry, setup), pickle.HIGHEST_PROTOCOL)
        self.connection, theirs = Pipe(duplex=True)
        lifeline, self._lifeline = os.pipe()  # closed when this process dies, however it dies
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        flags = fcntl.fcntl(self._output, fcntl.F_GETFL)
        fcntl.fcntl(self._output, fcntl.F_SETFL, flags | os.O_APPEND)  # after a truncation the child writes at the end
        try:
            self.process = fork_server.run(
                f"import sys; from gradoracle.execution.process import serve; serve({memory}, *map(int, sys.argv[1:]))",
                has_engine=True,
                env={**os.environ, **env},
                folder=folder,
                stdout=self._output,
                stderr=self._output,
                descriptors=(theirs.fileno(), lifeline),
                name="gradoracle-work",
                is_leader=True,  # processes that the kernel starts can be killed with it
            )
        finally:
            theirs.close()
            os.close(lifeline)
        self.started, self.taken, self._ended = False, False, False
        self.job: Any = NOTHING
        self.phase: str | None = None
        self.since, self.limit, self.factor = time.monotonic(), startup_limit, 1.0
        self.entered = self.since
        self.deadline = self.since + startup_limit
        with contextlib.suppress(OSError):  # a child that is already dead is found by the next check
            self.connection.send_bytes(message)

    def start(self) -> None:
        """Its ``entry(setup)`` has returned: it can take jobs."""
        self.started = True
        self.rest()

    def take(self, job: Any, message: bytes, factor: float) -> None:
        """Send it a job (``message`` is the pickled job). Raises OSError where the process is dead."""
        with contextlib.suppress(OSError):
            self._output.truncate(0)
        self.connection.send_bytes(message)
        self.job, self.taken, self.factor, self.since = job, False, factor, time.monotonic()
        self.entered = self.since

    def enter(self, phase: str | None, limit: float | None, at: float) -> None:
        """It announced a phase of at most ``limit`` seconds, at time ``at`` of the system's monotonic clock."""
        self.phase, self.entered = phase, at
        self.limit = _FOREVER if limit is None else limit * self.factor
        self.deadline = at + self.limit

    def rest(self) -> None:
        """It has no job."""
        self.job, self.phase, self.limit, self.deadline = NOTHING, None, _FOREVER, _FOREVER

    def cut_output(self) -> None:
        """Free the disk space of a kernel that prints without end; the end of its output stays."""
        with contextlib.suppress(OSError, ValueError):
            file = os.fstat(self._output.fileno())
            if file.st_blocks * _BLOCK > _OUTPUT_LIMIT and not _freed(self._output.fileno(), file.st_size - _TAIL):
                kept = self._last_output()  # what is printed between here and the next line is lost
                self._output.truncate(0)
                os.write(self._output.fileno(), kept)

    def output(self) -> str:
        """The end of the child's output."""
        try:
            return self._last_output().decode("utf-8", "replace").strip()
        except (OSError, ValueError):
            return ""

    def _last_output(self) -> bytes:
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _TAIL))
        return self._output.read(_TAIL)

    def end(self, keep_output: bool = False) -> None:
        """Kill the process and everything it started; may be called twice."""
        if not self._ended:
            self._ended = True
            self.process.kill()  # it may not lead its session yet
            if pid := self.process.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5.0)
            self.connection.close()
            os.close(self._lifeline)
        if not keep_output:
            self._output.close()


def cause(code: int | None) -> tuple[str, str]:
    """The kind and description of a process's return code."""
    if code is None:
        return "exit", "closed its connection and went on running"
    if code >= 0:
        return "exit", f"exited with code {code}"
    if -code == signal.SIGKILL:
        return "memory", "killed by the system (signal 9: most likely out of memory)"
    return "signal", f"killed by signal {-code} ({(signal.strsignal(-code) or 'unknown').lower()})"


def load(entry: str) -> Callable[[Any], Work]:
    """Import ``"package.module:function"``."""
    module, _, function = entry.partition(":")
    loaded: Callable[[Any], Work] = getattr(importlib.import_module(module), function)
    return loaded


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
    except Poisoned as error:
        return Result(None, error.value, Crash(inside, error.how, "poisoned")), False
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
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # it leads a session, which Ctrl-C does not reach
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory is not None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (memory if hard < 0 else min(memory, hard), hard))
    faulthandler.enable()
    for descriptor in (channel, lifeline):
        os.set_inheritable(descriptor, False)
    _die_with_parent(lifeline)
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
            work = load(entry)(setup)
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
        code = 70
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # skip the clean-up of libraries, which a kernel may have broken


def _die_with_parent(lifeline: int) -> None:
    """Let the system end this process when the parent's end of the pipe closes, even in a kernel that hangs."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # which is: terminate
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _freed(file: int, length: int) -> bool:
    """Free the disk space of the first bytes of a file, whose size and end stay; False where that is not possible."""
    fallocate = getattr(ctypes.CDLL(None), "fallocate", None)
    if fallocate is None:
        return False
    span = ctypes.c_int64(0), ctypes.c_int64(length)
    return bool(fallocate(file, _KEEP_SIZE | _PUNCH_HOLE, *span) == 0)
