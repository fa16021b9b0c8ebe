"""Fork child: the program of a fork server and of its children, and the messages between a server and its clients.

It runs before anything is imported, and imports nothing of gradoracle.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

LENGTH = struct.Struct("!Q")  # the length of a ChildProgram as JSON, sent before it together with its descriptors
NUMBER = struct.Struct("!q")  # an answer: the child's pid when it has started, its return code when it has ended
_MOST_DESCRIPTORS = 16


@dataclass(frozen=True)
class ChildProgram:
    """A program to run in a child, as of ``fork_server.run``; it is sent with descriptors, its streams first.

    Where ``path`` is None the search path is that of its server.
    """

    program: str
    arguments: Sequence[str]
    path: Sequence[str] | None
    env: Mapping[str, str]
    folder: str
    is_leader: bool
    name: str


def exactly(connection: socket.socket, size: int) -> bytes:
    """Read ``size`` bytes.

    Raises:
        EOFError: the connection ends before.
    """
    content = b""
    while len(content) < size:
        if not (part := connection.recv(size - len(content))):
            raise EOFError
        content += part
    return content


def serve(listening: int, lifeline: int, modules: Sequence[str]) -> NoReturn:
    """The main loop of a server: import modules, then fork on request, until the other end of the lifeline closes.

    Args:
        listening: descriptor of a listening socket.
        lifeline: read end of a pipe.
        modules: to import, or ``module:function`` to call; failures are left to the programs that need them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the clients and the children
    gc.disable()  # a fifth of the time of imports is garbage collection
    for module, _, function in (name.partition(":") for name in modules):
        with contextlib.suppress(Exception):
            found = importlib.import_module(module)
            if function:
                getattr(found, function)()
    gc.freeze()  # no collection in a child visits these objects, nor copies their pages
    listener = socket.socket(fileno=listening)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}  # by pid: the client to notify of the child's end
    while True:
        waited: list[Any] = [listener, lifeline, woken]
        ready = select.select(waited, [], [])[0]
        if lifeline in ready:
            os._exit(0)
        if woken in ready:
            with contextlib.suppress(OSError):
                os.read(woken, 4096)
            _reap(running)
        if listener in ready:
            connection = listener.accept()[0]
            try:
                order, descriptors = _received(connection)
            except (OSError, EOFError, ValueError, TypeError):
                connection.close()
                continue
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for other in (listener, connection, *running.values()):
                    other.close()
                for number in (woken, wake, lifeline):
                    os.close(number)
                _become(order, descriptors)
            for number in descriptors:
                os.close(number)
            running[pid] = connection
            with contextlib.suppress(OSError):
                connection.sendall(NUMBER.pack(pid))


def _reap(running: dict[int, socket.socket]) -> None:
    """Notify the client of each child that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        connection = running.pop(pid)
        with contextlib.suppress(OSError):
            connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))
        connection.close()


def _received(connection: socket.socket) -> tuple[ChildProgram, list[int]]:
    """An order with its descriptors, from a process of the same user only."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", credentials)[1] != os.getuid():
        raise OSError("a process of another user")
    connection.settimeout(10.0)
    head, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, _MOST_DESCRIPTORS)
    try:
        head += exactly(connection, LENGTH.size - len(head))
        order = ChildProgram(**json.loads(exactly(connection, LENGTH.unpack(head)[0])))
    except BaseException:
        for number in descriptors:
            os.close(number)
        raise
    connection.settimeout(None)
    return order, descriptors


def _become(order: ChildProgram, descriptors: Sequence[int]) -> NoReturn:
    """In a child: run the ordered program, to its end."""
    code = 1
    try:
        gc.enable()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if order.is_leader:
            os.setsid()
        for stream, number in enumerate(descriptors[:3]):
            os.dup2(number, stream)
            os.close(number)
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(order.name[:15])
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(order.env)
        os.chdir(order.folder)
        if order.path is not None:
            sys.path[:] = order.path
        sys.argv[:] = ["-c", *order.arguments, *map(str, descriptors[3:])]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        importlib.invalidate_caches()
        code = _exit_code(order.program, vars(main))
        threading._shutdown()  # type: ignore[attr-defined]  # as at the end of an interpreter
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)


def _exit_code(program: str, names: dict[str, Any]) -> int:
    """Run a program; its exit code as of an interpreter, or minus the signal that ends it."""
    try:
        exec(compile(program, "<string>", "exec"), names)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
