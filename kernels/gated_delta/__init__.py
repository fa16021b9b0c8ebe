"""The gated delta rule, causal and linear with a state, in Triton: forward and VJP.

Import the package with TRITON_INTERPRET=1 set to run it without a GPU.
"""

from __future__ import annotations

from .blocks import BLOCKS, Blocks, fitting, workspace_bytes
from .gated_delta import gated_delta

__all__ = ["BLOCKS", "Blocks", "fitting", "gated_delta", "workspace_bytes"]
