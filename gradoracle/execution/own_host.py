"""Own host: kernels that run in this process, for closures, a debugger, and tests; nothing ends one that hangs."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gradoracle.host.host import Host
from gradoracle.host.interpreter import is_active
from gradoracle.model.call import Call, Reply
from gradoracle.model.call_errors import Unavailable, end_of
from gradoracle.model.kernel import Kernel
from gradoracle.model.reason import Reason
from gradoracle.model.tensor_bits import NoAddresses, copies


class OwnHost:
    """The kernels of one target, in this process; each call gets copies of its tensors."""

    def __init__(self, kernels: Mapping[str, Kernel]) -> None:
        self._host = Host(kernels)

    @property
    def interprets(self) -> bool:
        """Whether Triton is interpreted in this process."""
        return is_active()

    @property
    def devices(self) -> int:
        """The number of GPUs that PyTorch sees."""
        return torch.cuda.device_count()

    def call(self, call: Call) -> Reply:
        """Make a call."""
        try:
            own = copies(call.tensors())
        except NoAddresses as error:
            return Reply.ended(call, end_of(Unavailable(str(error), Reason.MEMORY)))
        return self._host.call(call.with_tensors(own))

    def close(self) -> None:
        """There is nothing to end."""
