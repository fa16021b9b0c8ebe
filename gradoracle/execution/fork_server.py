"""Fork server: a process that has done the slow imports, and forks itself for each program to run.

Importing torch, its tracing and Triton takes seconds, and every worker, every side of a gate and every compilation
needs them. Here they are imported once: a child starts in some 20 ms, and otherwise as by ``python -c``, with the
requested environment, search path, working directory, streams and ``__main__``.

A server of ``PACKAGES`` holds nothing of gradoracle or of a project, so that it serves every descendant of the process
that started it; they find it by ``VARIABLE``. A server of the ``ENGINE`` has also imported gradoracle and done the work
that the first case of a process needs; it serves those descendants whose gradoracle is the same files, unchanged since.
A server of another Python has imported what hosts need, with that Python's packages and this gradoracle
(``host.homes``). A server makes no CUDA context, so that its children can make their own.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import IO, Any

from gradoracle.execution import fork_child
from gradoracle.execution.fork_child import LENGTH, NUMBER, ChildProgram, exactly
from gradoracle.host import homes

VARIABLE = "GRADORACLE_FORKSERVER"  # the address of a server of packages; "off": each process is a new interpreter
ENGINE_VARIABLE = "GRADORACLE_FORKSERVER_ENGINE"  # the address of a server of the engine
HOST_VARIABLE = "GRADORACLE_FORKSERVER_HOST"  # the address of a server of another Python
PACKAGES = (
    "torch",
    "torch._dynamo",
    "torch._decomp.decompositions_for_jvp",
    "triton.language",
    "triton.runtime.interpreter",
    "hypothesis.internal.conjecture.engine",
    "flint",
    "mpmath",
    "jaxtyping",
    "numba.core.registry",
    "numba.cpython.randomimpl",
    "numba.np.linalg",
    "numba.np.arrayobj",
    "numba.experimental",
)
ENGINE = (
    "gradoracle.cli.main",
    "gradoracle.cli.commands.check",
    "gradoracle.cli.commands.gate",
    "gradoracle.check.run",
    "gradoracle.gate.run",
    "gradoracle.gate.side",
    "gradoracle.report.terminal",
    "gradoracle.properties.universal",
    "gradoracle.execution.warm_up:warm",
)
HOST = ("torch", "numpy", "triton.language", "triton.runtime.interpreter", "gradoracle.execution.hosted")
# Read when a process starts, so a server has them for its children: one thread each, since there is a process per core;
# and large tensors keep their memory, which the system would clear anew each time (glibc; others ignore these).
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
}
_AT_THE_START = ("PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONDEVMODE")
_HOMES = ("gradoracle", "gradoracle.kernels", "gradoracle.properties")
_OFF = "off"
_SERVER = "import runpy, sys; runpy.run_path(sys.argv[1])['serve'](*map(int, sys.argv[-2:]), sys.argv[2:-2])"
_GONE = 255  # the return code of a child whose server has died: only the server knew the real one
_SLICE = 0.2  # seconds of one wait for a child without a limit


class NoServer(Exception):
    """There is no fork server, or it is gone."""


class Child:
    """A child of a server as its requester sees it: the part of ``subprocess.Popen`` that is used here."""

    def __init__(self, connection: socket.socket, stdin: IO[bytes] | None = None) -> None:
        self.stdin = stdin
        self.returncode: int | None = None
        self._connection, self._pid = connection, 0

    @property
    def pid(self) -> int:
        """The process id, once the child has started; 0 if it never will."""
        while not self._pid and self.returncode is None:
            self._receive(_SLICE)
        return self._pid

    def poll(self) -> int | None:
        """The return code as of Popen; None while it runs."""
        while self.returncode is None and self._receive(0.0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its return code.

        Raises:
            subprocess.TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = _SLICE if until is None else until - time.monotonic()
            if not self._receive(max(0.0, left)) and until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired("a child of the fork server", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None and self.pid and self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it runs."""
        self.send_signal(signal.SIGKILL)

    def _receive(self, timeout: float) -> bool:
        """Read one number from the server, within ``timeout`` seconds: first the pid, then the return code."""
        try:
            if not select.select([self._connection], [], [], timeout)[0]:
                return False
            number = NUMBER.unpack(exactly(self._connection, NUMBER.size))[0]
        except (OSError, EOFError):
            self._end(_GONE)
            return True
        if self._pid:
            self._end(number)
        else:
            self._pid = number
        return True

    def _end(self, code: int) -> None:
        self.returncode = code
        self._connection.close()


class Server:
    """A server as seen by a process that requests children.

    Args:
        address: the address of its socket.
        lifeline: write end of a pipe; the server ends when it closes. None: the server is another process's.
    """

    def __init__(self, address: str, lifeline: int | None = None) -> None:
        self.address, self._lifeline, self._owner = address, lifeline, os.getpid()

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was started by this process, and not before a fork."""
        return self._owner == os.getpid()

    def fork(self, order: ChildProgram, descriptors: Sequence[int], stdin: IO[bytes] | None) -> Child:
        """Let it run a program in a child.

        Raises:
            NoServer: it is gone.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(_bound(self.address))
            content = json.dumps(asdict(order)).encode("ascii")
            socket.send_fds(connection, [LENGTH.pack(len(content))], list(descriptors))
            connection.sendall(content)
        except OSError as error:
            connection.close()
            raise NoServer(str(error)) from None
        return Child(connection, stdin)

    def end(self) -> None:
        """End it, if it was started here; its children go on."""
        if self._lifeline is not None and self.is_of_this_process:
            os.close(self._lifeline)
        self._lifeline = None


_servers: dict[tuple[str, tuple[str, ...]], Server] = {}  # by the interpreter, and its modules beyond PACKAGES


def warm(has_engine: bool = True) -> None:
    """Start the servers of packages and of the engine, which get ready while this process goes on."""
    with contextlib.suppress(NoServer):
        _engine() if has_engine else _packages()


def variables() -> dict[str, str]:
    """The variables by which other processes find the servers that this one uses."""
    try:
        found = {VARIABLE: _packages().address}
    except NoServer:
        return {VARIABLE: _OFF}
    for (_, modules), server in _servers.items():
        if modules:
            found[HOST_VARIABLE if modules == HOST else ENGINE_VARIABLE] = server.address
    return found


def is_of(path: Sequence[str]) -> bool:
    """Whether a search path leads to the gradoracle of this process."""
    own = importlib.util.find_spec("gradoracle")
    for finder in sys.meta_path:
        if (find := getattr(finder, "find_spec", None)) is not None:
            found = find("gradoracle", path if finder is importlib.machinery.PathFinder else None)
            if found is not None:
                return own is not None and found.origin == own.origin
    return False


def run(
    program: str,
    arguments: Sequence[str] = (),
    *,
    has_engine: bool = False,
    python: str | None = None,
    path: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    folder: str | None = None,
    stdin: Any = subprocess.DEVNULL,
    stdout: Any = None,
    stderr: Any = None,
    descriptors: Sequence[int] = (),
    is_leader: bool = False,
    name: str = "gradoracle",
) -> Child | subprocess.Popen[bytes]:
    """Start ``python -c PROGRAM ARGUMENTS...``, with the slow imports done already if a server is available.

    Args:
        program: its source.
        arguments: words; ``sys.argv[1:]`` is these, then the numbers of ``descriptors`` in the child.
        has_engine: whether it starts with the gradoracle of this process imported; without it the program starts with
            packages only, and ``path`` may lead to another gradoracle.
        python: another interpreter, with its own search path and this gradoracle; None: that of this process.
        path: its ``sys.path``; None: that of this process.
        env: its whole environment; None: that of this process.
        folder: its working directory; None: that of this process.
        stdin, stdout, stderr: as of ``subprocess.Popen``, with ``PIPE`` for stdin only.
        descriptors: further descriptors that it inherits.
        is_leader: whether it leads a session of its own.
        name: the name in the list of processes, of a child of a server; at most 15 characters.
    """
    path = None if python else [entry for entry in (sys.path if path is None else path) if isinstance(entry, str)]
    env = dict(os.environ if env is None else env)
    streams: dict[str, Any] = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    try:
        server = _host(python) if python else _engine() if has_engine else _packages()
        if not server.address.endswith(_interpreter(env, python or sys.executable)):
            raise NoServer("it was started in another environment")
        env |= variables()
        order = ChildProgram(program, tuple(arguments), path, env, folder or os.getcwd(), is_leader, name)
        with contextlib.ExitStack() as stack:
            own, written = _streams(stack, **streams)
            try:
                return server.fork(order, [*own, *descriptors], written)
            except NoServer:
                if written is not None:
                    written.close()
                for wanted in [key for key, each in _servers.items() if each is server]:
                    del _servers[wanted]
                raise
    except NoServer:
        return subprocess.Popen(
            [*_begun(path, python, program), *arguments, *map(str, descriptors)],
            cwd=folder,
            env=env,
            pass_fds=descriptors,
            start_new_session=is_leader,
            **streams,
        )


def _streams(stack: contextlib.ExitStack, stdin: Any, stdout: Any, stderr: Any) -> tuple[list[int], IO[bytes] | None]:
    """The descriptors of the three streams (those opened here close with the stack), and the writer to stdin."""
    found, written = [], None
    for number, stream in enumerate((stdin, stdout, stderr)):
        if stream is None:
            found.append(number)
        elif stream == subprocess.DEVNULL:
            found.append(os.open(os.devnull, os.O_RDWR))
            stack.callback(os.close, found[-1])
        elif stream == subprocess.PIPE:
            ours, theirs = os.pipe()
            found.append(ours)
            stack.callback(os.close, ours)
            written = open(theirs, "wb", 0)  # noqa: SIM115
        else:
            found.append(stream if isinstance(stream, int) else stream.fileno())
    return found, written


def _packages() -> Server:
    """The server of packages: the inherited one if it started in the same environment, or a new one.

    Raises:
        NoServer: servers are switched off or impossible here.
    """
    known = os.environ.get(VARIABLE, "")
    if known == _OFF or not sys.platform.startswith("linux"):
        raise NoServer("every process is to start its own interpreter")
    own = sys.executable
    return _found((own, ()), known, lambda: _interpreter(os.environ, own), None)


def _engine() -> Server:
    """The server of the engine: likewise, if its gradoracle is that of this process.

    Raises:
        NoServer: as ``_packages``.
    """
    return _of_this_code((sys.executable, ENGINE), ENGINE_VARIABLE, _packages())


def _host(python: str) -> Server:
    """The server of another Python: likewise.

    Raises:
        NoServer: as ``_packages``.
    """
    _packages()  # where servers are possible at all
    return _of_this_code((python, HOST), HOST_VARIABLE, None)


def _of_this_code(wanted: tuple[str, tuple[str, ...]], variable: str, parent: Server | None) -> Server:
    """A server with gradoracle: the inherited one if its gradoracle is that of this process, or a new one."""
    known = os.environ.get(variable, "")
    return _found(wanted, known, lambda: f"{_code()}-{_interpreter(os.environ, wanted[0])}", parent)


def _found(wanted: tuple[str, tuple[str, ...]], known: str, kind: Callable[[], str], parent: Server | None) -> Server:
    """The server of an interpreter and some modules: the one in use, the inherited one, or a new one."""
    found = _servers.get(wanted)
    if found is None or not (found.is_of_this_process or found.address == known):
        own = kind()
        alike = known.endswith(f"-{own}") and _answers(known)
        found = _servers[wanted] = Server(known) if alike else _started(wanted, own, parent)
    return found


def _answers(address: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        return connection.connect_ex(_bound(address)) == 0


def _bound(address: str) -> str:
    """An address in the abstract namespace, which leaves no file behind."""
    return f"\0{address}"


def _started(wanted: tuple[str, tuple[str, ...]], kind: str, parent: Server | None) -> Server:
    """A new server: a child of another one that has imported packages, or a new process that imports them."""
    python, modules = wanted
    address = f"gradoracle-{os.getpid()}-{os.urandom(8).hex()}-{kind}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(_bound(address))
    listener.listen(128)  # clients that connect before the imports are done wait
    theirs, lifeline = os.pipe()
    path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
    words = [fork_child.__file__, *(modules or PACKAGES)]
    descriptors = (listener.fileno(), theirs)
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | ENVIRONMENT
    try:
        if parent is not None:
            with open(os.devnull, "r+b") as nothing:
                order = ChildProgram(_SERVER, words, path, env, os.getcwd(), False, "gradoracle-fork")
                parent.fork(order, [nothing.fileno()] * 3 + list(descriptors), None)
        else:
            subprocess.Popen(
                [*_begun(path, None if python == sys.executable else python, _SERVER), *words, *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=env,
                pass_fds=descriptors,
            )
    finally:
        listener.close()
        os.close(theirs)
    found = Server(address, lifeline)
    atexit.register(found.end)
    return found


def _begun(path: Sequence[str] | None, python: str | None, program: str) -> list[str]:
    """The command of a program in a new interpreter, with a search path, or in another one, with this gradoracle."""
    if python is None:
        return [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}\n{program}"]
    own, lent = homes.folders(_HOMES), homes.folders(homes.LENT)
    at_home = f"{homes.ALONE}import runpy; runpy.run_path({homes.__file__!r})['install']({own!r}, {lent!r})\n"
    return [python, "-c", f"{at_home}{program}"]


def _interpreter(env: Mapping[str, str], python: str) -> str:
    """A digest of everything that an interpreter reads at its start: only servers with the same one serve it."""
    own = [env.get(name) for name in _AT_THE_START]
    return hashlib.sha256(repr((python, own)).encode()).hexdigest()[:16]


def _code() -> str:
    """A digest of this process's gradoracle: the paths, sizes and modification times of its files."""
    digest = hashlib.sha256()
    for package in ("gradoracle", "gradoracle.properties"):
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for place, _, names in sorted(os.walk(folder)):
                for file in sorted(os.path.join(place, name) for name in names if name.endswith(".py")):
                    with contextlib.suppress(OSError):
                        found = os.stat(file)
                        digest.update(f"{file} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
