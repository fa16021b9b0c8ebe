"""Warmed: what the first case of a process needs and later ones find done, so that a fork server does it for all.

Nothing here may begin a thread or open a device, neither of which a fork has; so no gradient is taken.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradoracle.oracle.exact import decompositions
from gradoracle.oracle.rounding import fused


def warm() -> None:
    """Make the table of decompositions, load what numba compiled, and have torch.fx trace once."""
    decompositions.table()
    one = torch.ones(1, dtype=torch.float64)
    fused.errors(one[None], one, one, 2.0, None)
    torch.fx.symbolic_trace(_square)


def _square(x: Tensor) -> Tensor:
    return x * x
