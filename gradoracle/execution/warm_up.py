"""Warm-up: work that the first case of a process needs and later ones find done; a fork server does it once for all.

Nothing here may start a thread or open a device, since a fork inherits neither; so no gradient is taken.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradoracle.oracle.exact import decompositions
from gradoracle.oracle.rounding.probes import rounding_errors


def warm() -> None:
    """Build the table of decompositions, load numba's compiled code, and let torch.fx trace once."""
    decompositions.table()
    one = torch.ones(1, dtype=torch.float64)
    rounding_errors(one, 8, one, one)
    torch.fx.symbolic_trace(_square)


def _square(x: Tensor) -> Tensor:
    return x * x
