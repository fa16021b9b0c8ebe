"""Log-sum-exp of attention scores in Triton: forward and VJP, with softcap, sinks, segments and grouped heads.

Import the package with TRITON_INTERPRET=1 set to run it without a GPU.
"""

from __future__ import annotations

from .block_sizes import BlockSizes
from .blocks import BLOCKS, Blocks, fitting
from .fused import workspace_bytes
from .logsumexp import lse

__all__ = ["BLOCKS", "BlockSizes", "Blocks", "fitting", "lse", "workspace_bytes"]
