"""Serve: the process of a host: it loads kernels and answers calls until its judge is gone."""

from __future__ import annotations

import contextlib
import socket
import traceback
from collections.abc import Mapping
from typing import Any

import torch

from gradoracle.host import lifeline as lifelines
from gradoracle.host.compiling import compile_ahead, rehearsing
from gradoracle.host.host import Host
from gradoracle.model import wire
from gradoracle.model.errors import first_line
from gradoracle.model.job import Compilation
from gradoracle.model.serialize import from_plain, to_plain


def serve(memory: int | None, channel: int, lifeline: int) -> None:
    """The whole life of a host's process.

    Args:
        memory: bytes beyond which an allocation fails; None: no limit.
        channel: descriptor of its end of a socket, on which it gets ``entry`` and ``setup`` and then calls.
            ``entry`` is "package.module:function"; it returns a Host, given ``setup`` and what announces compilations.
        lifeline: read end of a pipe whose write end only the judge holds.
    """
    lifelines.begin(memory, channel, lifeline)
    code = 0
    try:
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the judge is gone
            _Server(socket.socket(fileno=channel)).run()
    except BaseException:
        traceback.print_exc()
        code = lifelines.FAILED
    finally:
        lifelines.end(code)


class _Server:
    """Answers one judge."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def run(self) -> None:
        """Load the kernels, then answer.

        Raises:
            EOFError: the judge is gone.
        """
        asked, _ = wire.read(self._fill)
        try:
            load = lifelines.load(asked["entry"])
            self._host: Host = load(asked["setup"], lambda name, limit: self._say({"announced": [name, limit]}))
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            self._say({"failed": [type(error).__name__, first_line(error), traceback.format_exc()[-1 << 16 :]]})
            return
        torch.set_num_threads(1)
        self._say({"ready": [self._host.interprets, self._host.devices]})
        while True:
            self._answer()

    def _answer(self) -> bool:
        """Answer one message; False where it ends a rehearsal."""
        document, blobs = wire.read(self._fill)
        if "call" in document:
            reply = self._host.call(wire.call_of(document, blobs))
            self._send(wire.of_reply(reply, document["number"]))
        elif "describe" in document:
            self._say({"described": to_plain(self._host.describe())})
        elif "ask" in document:
            try:
                self._say({"answer": to_plain(self._host.ask(*document["ask"]))})
            except Exception as error:
                self._say({"raised": [type(error).__name__, first_line(error)]})
        elif "rehearsal" in document:
            if not document["rehearsal"]:
                return False
            with rehearsing() as found:
                while self._answer():
                    pass
            self._say({"compilations": to_plain(found)})
        else:
            compilation = from_plain(Compilation, document["compilation"])
            self._say({"compiled": compile_ahead(compilation)})
        return True

    def _fill(self, memory: memoryview) -> None:
        while memory:
            count = self._connection.recv_into(memory)
            if not count:
                raise EOFError
            memory = memory[count:]

    def _say(self, document: Mapping[str, Any]) -> None:
        self._send(wire.of_plain(document))

    def _send(self, message: list[Any]) -> None:
        for part in message:
            self._connection.sendall(part)
