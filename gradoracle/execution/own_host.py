"""Own host: kernels that run in this process, for closures, a debugger, and tests; nothing ends one that hangs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from gradoracle.host.compiling import compile_ahead, rehearsing
from gradoracle.host.host import Host
from gradoracle.model.call import Call, Reply
from gradoracle.model.call_errors import Crashed, DeviceLost, Unavailable, end_of
from gradoracle.model.job import Compilation, EndedProcess
from gradoracle.model.kernel import Kernel
from gradoracle.model.reason import Reason
from gradoracle.model.tensor_bits import NoAddresses, copies


class OwnHost:
    """The kernels of one target, in this process; each call gets copies of its tensors.

    Args:
        kernels: by name.
        device: "cpu" or "cuda".
        called_in: as of ``Host``.
    """

    ended: Sequence[EndedProcess] = ()
    seconds = math.inf

    def __init__(self, kernels: Mapping[str, Kernel], *, device: str = "cpu", called_in: str = "") -> None:
        self._host = Host(kernels, device=device, called_in=called_in)
        self._lost = ""  # the call that lost the device, for good

    @property
    def interprets(self) -> bool:
        """Whether Triton is interpreted in this process."""
        return self._host.interprets

    @property
    def devices(self) -> int:
        """The number of GPUs that PyTorch sees."""
        return self._host.devices

    def call(self, call: Call) -> Reply:
        """Make a call."""
        if self._lost:
            text = f"{call.how.name} was not called: {self._lost} had lost the device"
            return Reply.ended(call, end_of(Crashed(text, Reason.LOST, call.how.name)))
        try:
            own = copies(call.tensors())
        except NoAddresses as error:
            return Reply.ended(call, end_of(Unavailable(str(error), Reason.MEMORY)))
        reply = self._host.call(call.with_tensors(own))
        if reply.end is not None and reply.end.kind == DeviceLost.__name__:
            self._lost = reply.end.call
        return reply

    def ask(self, kernel: str, what: str, arguments: Sequence[Any]) -> Any:
        """A declaration of a kernel that is a function, on plain values."""
        return self._host.ask(kernel, what, arguments)

    def rehearsal(self) -> AbstractContextManager[list[Compilation]]:
        """Within it calls launch nothing; afterwards the list has what they would compile."""
        return rehearsing()

    def compile_ahead(self, compilation: Compilation) -> float:
        """Make one compilation: the seconds that it took."""
        return compile_ahead(compilation)

    def close(self) -> None:
        """There is nothing to end."""
