"""Child: a child process that is spoken to through a socket, whose output is kept, and which ends with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from typing import IO

from gradoracle.execution import fork_server

_TAIL = 4000  # bytes of a dead child's output that are kept
_OUTPUT_LIMIT = 1 << 26  # bytes a child may print before all but the end of its file is freed
_BLOCK = 512  # bytes, of ``st_blocks``
_LACKING = ("llocate memory", "ut of memory", "bad_alloc")  # printed by libraries before they abort
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of Linux's fallocate


class Child:
    """A child process as its parent sees it.

    Args:
        program: its source; ``sys.argv[1:]`` is its end of the socket and of the lifeline (``host.lifeline``).
        env: environment variables besides those of this process.
        folder: its working directory; None: that of this process.
        name: in the list of processes.
        python: another interpreter; None: that of this process.

    Attributes:
        socket: this process's end of the socket.
        process: the process.
    """

    def __init__(
        self, program: str, env: Mapping[str, str], folder: str | None, name: str, python: str | None = None
    ) -> None:
        self.socket, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()  # closed when this process dies, however it dies
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        flags = fcntl.fcntl(self._output, fcntl.F_GETFL)
        fcntl.fcntl(self._output, fcntl.F_SETFL, flags | os.O_APPEND)  # after a truncation the child writes at the end
        self._ended = False
        try:
            self.process = fork_server.run(
                program,
                has_engine=True,
                python=python,
                env={**os.environ, **env},
                folder=folder,
                stdout=self._output,
                stderr=self._output,
                descriptors=(theirs.fileno(), lifeline),
                name=name,
                is_leader=True,  # processes that it starts can be killed with it
            )
        except OSError:
            self.socket.close()
            os.close(self._lifeline)
            self._output.close()
            self._ended = True
            raise
        finally:
            theirs.close()
            os.close(lifeline)

    def forget_output(self) -> None:
        """Drop what it has printed."""
        with contextlib.suppress(OSError):
            self._output.truncate(0)

    def cut_output(self) -> None:
        """Free the disk space of a kernel that prints without end; the end of its output stays."""
        with contextlib.suppress(OSError, ValueError):
            file = os.fstat(self._output.fileno())
            if file.st_blocks * _BLOCK > _OUTPUT_LIMIT and not _freed(self._output.fileno(), file.st_size - _TAIL):
                kept = self._last_output()  # what is printed between here and the next line is lost
                self._output.truncate(0)
                os.write(self._output.fileno(), kept)

    def output(self) -> str:
        """The end of its output."""
        try:
            return self._last_output().decode("utf-8", "replace").strip()
        except (OSError, ValueError):
            return ""

    def _last_output(self) -> bytes:
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _TAIL))
        return self._output.read(_TAIL)

    def death(self) -> tuple[str, str]:
        """The kind and description of how it ended, or that it did not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2.0)
        kind, how = cause(self.process.poll())
        if kind == "signal" and any(mark in self.output() for mark in _LACKING):
            return "memory", f"{how} for lack of memory"
        return kind, how

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
            self.socket.close()
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


def _freed(file: int, length: int) -> bool:
    """Free the disk space of the first bytes of a file, whose size and end stay; False where that is not possible."""
    fallocate = getattr(ctypes.CDLL(None), "fallocate", None)
    if fallocate is None:
        return False
    span = ctypes.c_int64(0), ctypes.c_int64(length)
    return bool(fallocate(file, _KEEP_SIZE | _PUNCH_HOLE, *span) == 0)
