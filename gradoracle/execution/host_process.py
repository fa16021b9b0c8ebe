"""Host process: the kernels of one target in a process of their own, as their judge sees it.

It is started at the first call. A call that hangs, or ends its process, has crashed; the next one starts another.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gradoracle.execution.child import Child
from gradoracle.execution.executor import StartupError
from gradoracle.host.lifeline import FAILED
from gradoracle.model import wire
from gradoracle.model.call import Call, Reply
from gradoracle.model.call_errors import Crashed, DeviceLost, Unavailable, end_of
from gradoracle.model.description import HostedTarget, require_sound
from gradoracle.model.errors import DeclarationError, TargetError, UsageError, first_line
from gradoracle.model.job import Compilation, EndedProcess, Phase
from gradoracle.model.reason import Reason
from gradoracle.model.serialize import Unreadable, from_plain, to_plain
from gradoracle.model.wording import printable

STARTUP_LIMIT = 600.0  # seconds by the clock for importing the kernel
_BUSY = 0.9  # of its limit: a process that used so much of the processor was busy, and no load kept it waiting
_PATIENCE = 3.0  # times its limit that a call may take by the clock, where it uses less of the processor
_TICK = 0.2  # seconds between two looks at a process that says nothing
_LEAST, _TIMES = 1 << 28, 64  # bytes that a reply may have: at least so many, or so many times those of the call
_MOST_TRACE = 1 << 16  # characters


class _Gone(Exception):
    """The process is gone, or killed for what it did."""

    def __init__(self, kind: str, how: str) -> None:
        self.kind, self.how = kind, how
        super().__init__(how)


class HostProcess:
    """A host in another process.

    Args:
        entry: "package.module:function", called there as ``host.serve.serve`` says.
        setup: its argument, a value of JSON.
        seconds: of processor time after which a call counts as hanging, or three times as many by the clock.
        startup: seconds by the clock for importing the kernel.
        env: environment variables of the process, besides those of this one.
        memory: bytes beyond which an allocation there fails; None: no limit.
        folder: its working directory.
        announce: called with what it compiles, and for how long at most a phase may last.
        python: its interpreter; None: that of this process.

    Attributes:
        ended: the calls that ended the process, in order.
    """

    def __init__(
        self,
        entry: str,
        setup: Any,
        *,
        seconds: float,
        startup: float = STARTUP_LIMIT,
        env: Mapping[str, str] | None = None,
        memory: int | None = None,
        folder: str | None = None,
        announce: Phase = lambda name, limit: None,
        python: str | None = None,
    ) -> None:
        self._first = wire.of_plain({"entry": entry, "setup": setup})
        self._python = python
        self.seconds, self._env, self._memory, self._folder = seconds, dict(env or {}), memory, folder
        self._startup = startup
        self._announce = announce
        self._child: Child | None = None
        self._is_ready = False
        self._facts: tuple[bool, int] = (False, 0)
        self._clock: _Clock | None = None
        self._number = 0
        self._answers: dict[str, Any] = {}
        self.ended: list[EndedProcess] = []

    @property
    def interprets(self) -> bool:
        """Whether Triton is interpreted there."""
        self.start()
        return self._facts[0]

    @property
    def devices(self) -> int:
        """The number of GPUs there."""
        self.start()
        return self._facts[1]

    def call(self, call: Call) -> Reply:
        """Make a call; one that ends the process, or exceeds its limit, has crashed.

        Raises:
            StartupError: the kernels cannot be imported.
        """
        self.start()
        self._number += 1
        own = sum(tensor.untyped_storage().nbytes() for tensor in call.tensors().values() if not tensor.is_meta)
        name = f"{call.how.label}{call.how.name}"
        try:
            with self._timed(self.seconds):
                document, blobs = self._asked(wire.of_call(call, self._number), max(_LEAST, _TIMES * own))
            reply = wire.reply_of(document, blobs, call, self._number)
        except wire.Malformed as error:
            return self._died(call, name, _Gone("malformed", f"gave an answer that cannot be read: {error}"))
        except _Gone as gone:
            return self._died(call, name, gone)
        if reply.end is not None and reply.end.kind == DeviceLost.__name__:
            self._lose(call.how.name, "lost")
        elif any(blob is None for blob in blobs):  # more than was expected was not read, and is in the way
            self._end()
        return reply

    def describe(self) -> HostedTarget:
        """What it has.

        Raises:
            StartupError: the kernels cannot be imported, or are described by what is no description.
        """
        self.start()
        try:
            with self._timed(self.seconds):
                document, _ = self._asked(wire.of_plain({"describe": True}), 0)
            found = from_plain(HostedTarget, document["described"])
            require_sound(found)
            return found
        except (_Gone, wire.Malformed, Unreadable, KeyError, TypeError) as error:
            self._end()
            raise StartupError(str(error), f"its kernels cannot be described: {first_line(error)}") from None

    def ask(self, kernel: str, what: str, arguments: Sequence[Any]) -> Any:
        """A declaration of a kernel that is a function, on plain values.

        Raises:
            StartupError: the kernels cannot be imported.
            DeclarationError: it raises, or ends its process.
        """
        key = json.dumps([kernel, what, to_plain(arguments)])
        if key not in self._answers:
            self.start()
            try:
                with self._timed(self.seconds):
                    document, _ = self._asked(wire.of_plain({"ask": json.loads(key)}), 0)
                if "raised" in document:
                    said = printable(": ".join(map(str, document["raised"])))
                    raise DeclarationError(f"{what} of kernel {kernel} raises {said}")
                self._answers[key] = _frozen(document["answer"])
            except (_Gone, wire.Malformed, KeyError, TypeError, RecursionError) as error:
                self._end()
                raise DeclarationError(f"{what} of kernel {kernel} cannot be evaluated: {first_line(error)}") from None
        return self._answers[key]

    @contextmanager
    def rehearsal(self) -> Iterator[list[Compilation]]:
        """Within it calls launch nothing; afterwards the list has what they would compile."""
        found: list[Compilation] = []
        self.start()
        self._send(wire.of_plain({"rehearsal": True}))
        try:
            yield found
        finally:
            with contextlib.suppress(_Gone, wire.Malformed, Unreadable, KeyError, TypeError):
                document, _ = self._asked(wire.of_plain({"rehearsal": False}), 0)
                found += from_plain(tuple[Compilation, ...], document["compilations"])

    def compile_ahead(self, compilation: Compilation) -> float:
        """Make one compilation, for the processes that share Triton's cache: the seconds that it took."""
        self.start()
        try:
            document, _ = self._asked(wire.of_plain({"compilation": to_plain(compilation)}), 0)
            return float(document["compiled"])
        except (_Gone, wire.Malformed, KeyError, TypeError, ValueError):
            self._end()
            return 0.0

    def close(self) -> None:
        """End the process."""
        self._end()

    def __del__(self) -> None:
        self._end()

    def begin(self) -> None:
        """Start the process, unless it runs, and do not wait until it is ready.

        Raises:
            StartupError: it cannot be started.
        """
        if self._child is not None:
            return
        start = f"serve({self._memory}, *map(int, sys.argv[1:]))"
        program = f"import sys; from gradoracle.host.serve import serve; {start}"
        try:
            self._child = Child(program, self._env, self._folder, "gradoracle-host", self._python)
        except OSError as error:
            raise StartupError(str(error), f"its process cannot be started: {error.strerror}") from None
        self._is_ready = False
        self._child.socket.settimeout(_TICK)
        with contextlib.suppress(_Gone):  # a process that is already dead is found by the next answer
            self._send(self._first)

    def start(self) -> None:
        """Start the process, unless it runs, and wait until it is ready.

        Raises:
            StartupError: the kernels cannot be imported, or the process died.
        """
        self.begin()
        if self._is_ready:
            return
        try:
            with self._timed(self._startup, patience=1.0):
                document, _ = self._answer(0)
            if "failed" in document:
                kind, sentence, trace = (printable(str(each), _MOST_TRACE) for each in document["failed"])
                is_plain = kind in (TargetError.__name__, UsageError.__name__) or sentence == kind
                raise StartupError(trace, sentence if is_plain else f"{kind}: {sentence}", kind)
            interprets, devices = document["ready"]
            self._facts, self._is_ready = (bool(interprets), int(devices)), True
        except _Gone as gone:
            output = self._output()
            self._end()
            said = f" ({printable(output.splitlines()[-1], 200)})" if self._python and output else ""
            raise StartupError(f"{gone.how}:\n{output}", f"importing the kernel: {gone.how}{said}") from None
        except (wire.Malformed, KeyError, TypeError, ValueError, OverflowError) as error:
            self._end()
            raise StartupError(str(error), "importing the kernel wrote into the answers of its process") from None
        except StartupError:
            self._end()
            raise

    def _died(self, call: Call, name: str, gone: _Gone) -> Reply:
        """The reply to a call that ended the process."""
        self._lose(call.how.name, gone.kind)
        if gone.kind == "memory":
            return Reply.ended(call, end_of(Unavailable(f"memory: {name} was {gone.how}", Reason.MEMORY)))
        remedy = "; if it is only slow, raise --call-seconds" if gone.kind == "time limit" else ""
        why = Reason.HUNG if gone.kind == "time limit" else Reason.ENDED
        return Reply.ended(call, end_of(Crashed(f"{name}: {gone.how}{remedy}", why, name)))

    def _lose(self, call: str, kind: str) -> None:
        self.ended.append(EndedProcess(call, kind))
        self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _output(self) -> str:
        return "" if self._child is None else self._child.output()

    def _asked(self, message: list[Any], most: int) -> tuple[Any, list[Any]]:
        """What is answered to a message."""
        self._send(message)
        return self._answer(most)

    def _answer(self, most: int) -> tuple[Any, list[Any]]:
        """The next message that is no announcement."""
        while True:
            document, blobs = wire.read(self._fill, most)
            if not isinstance(document, dict) or "announced" not in document:
                return document, blobs
            name, limit = document["announced"]
            self._announce(name, None)
            if self._clock is not None:
                self._clock.runs(limit is not None)

    def _send(self, message: list[Any]) -> None:
        for part in message:
            left = memoryview(part).cast("B")
            while left:
                try:
                    left = left[self._own.socket.send(left) :]
                except TimeoutError:
                    self._look()
                except OSError:
                    raise self._gone() from None

    def _fill(self, memory: memoryview) -> None:
        while memory:
            try:
                count = self._own.socket.recv_into(memory)
            except TimeoutError:
                self._look()
                continue
            except OSError:
                raise self._gone() from None
            if not count:
                raise self._gone()
            memory = memory[count:]

    @property
    def _own(self) -> Child:
        if self._child is None:
            raise _Gone("exit", "its process is gone")
        return self._child

    def _look(self) -> None:
        """Look after a process that says nothing.

        Raises:
            _Gone: it is dead, or has exceeded its limit.
        """
        self._own.cut_output()
        if self._own.process.poll() is not None:
            raise self._gone()
        if self._clock is not None and self._clock.is_over():
            raise _Gone("time limit", f"exceeded its time limit of {self._clock.limit:.3g} s")

    def _gone(self) -> _Gone:
        """How the process ended."""
        kind, how = self._own.death()
        if self._own.process.poll() == FAILED:  # its own code, not the kernel's
            how = f"{how} ({printable((self._output().splitlines() or ['no output'])[-1], 200)})"
        return _Gone(kind, how)

    @contextmanager
    def _timed(self, limit: float, patience: float = _PATIENCE) -> Iterator[None]:
        """Let what is asked within take so long at most, or ``patience`` times that where others take the processor."""
        self._clock = _Clock(self._own.process.pid, limit, patience)
        try:
            yield
        finally:
            self._clock = None


def _frozen(value: Any) -> Any:
    """A value of JSON whose lists are tuples."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return {name: _frozen(each) for name, each in value.items()} if isinstance(value, dict) else value


class _Clock:
    """The time that a process takes for one answer: of the processor, and by the clock."""

    def __init__(self, pid: int, limit: float, patience: float) -> None:
        self.limit, self._pid, self._patience = limit, pid, patience
        self._runs = True
        self._begun, self._used = time.monotonic(), -1.0
        self._before = (0.0, 0.0)

    def runs(self, on: bool) -> None:
        """Go on, or stop."""
        now = time.monotonic(), _processor_seconds(self._pid)
        if self._runs and not on:
            used = 0.0 if self._used < 0 else now[1] - self._used
            self._before = self._before[0] + now[0] - self._begun, self._before[1] + used
        self._begun, self._used = now
        self._runs = on

    def is_over(self) -> bool:
        """Whether the limit is exceeded."""
        if not self._runs:
            return False
        if self._used < 0:  # it is looked up once a process says nothing, which few calls do
            self._used = _processor_seconds(self._pid)
        clock = self._before[0] + time.monotonic() - self._begun
        if clock < self.limit:
            return False
        return clock > self._patience * self.limit or (
            self._before[1] + _processor_seconds(self._pid) - self._used >= _BUSY * self.limit
        )


def _processor_seconds(pid: int) -> float:
    """Seconds of the processor that a process and its dead children have used."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
        return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
