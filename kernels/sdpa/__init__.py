"""Scaled dot-product attention in Triton: forward, VJP, JVP (true and frozen), exact HVP, HVP by central differences.

`sdpa` is the differentiable function; the other functions are explicit entry points, one kernel pass each. Import the
package with TRITON_INTERPRET=1 set to run it without a GPU.
"""

from __future__ import annotations

from .attention import sdpa
from .blocks import BLOCKS, Blocks, fitting
from .differences import hvp_central_difference
from .explicit import backward, forward, hvp, jvp, jvp_frozen, vjp

__all__ = [
    "BLOCKS",
    "Blocks",
    "backward",
    "fitting",
    "forward",
    "hvp",
    "hvp_central_difference",
    "jvp",
    "jvp_frozen",
    "sdpa",
    "vjp",
]
