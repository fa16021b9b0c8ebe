"""Lightning attention, causal and linear, without decay, in Triton: forward, VJP, JVP and exact HVP.

Import the package with TRITON_INTERPRET=1 set to run it without a GPU.
"""

from __future__ import annotations

from .blocks import BLOCKS, Blocks, fitting, workspace_bytes
from .linear_attention import lightning

__all__ = ["BLOCKS", "Blocks", "fitting", "lightning", "workspace_bytes"]
