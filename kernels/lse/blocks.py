"""Block configurations of the LSE kernels, and which choice is automatic."""

from __future__ import annotations

import torch
import triton

from ..blocks import Blocks, interpreted, interpreted_blocks

BLOCKS: dict[str, Blocks] = {
    "small": Blocks(16, 16, num_warps=4, num_stages=1),
    "wide": Blocks(16, 64, num_warps=4, num_stages=1),
    "tall": Blocks(64, 16, num_warps=4, num_stages=1),
    "medium": Blocks(32, 32, num_warps=8, num_stages=1),
    "large": Blocks(64, 64, num_warps=4, num_stages=2),
}
"""Every shipped configuration by name; `blocks=` forces one on every pass."""


def padded_features(features: int) -> int:
    """Return the width of a tile's rows: the power of two, at least 16, that holds D."""
    return max(16, triton.next_power_of_2(features))


def fitting(dtype: torch.dtype, features: int) -> dict[str, Blocks]:
    """Return the shipped configurations that every pass, the HVP included, can run for this dtype and D.

    In the interpreter all of them; on a GPU not "large" for float32, whose IEEE dots take no tensor cores and spill,
    nor for rows of 256, whose four tiles take more shared memory than a program can have.
    """
    narrow = dtype != torch.float32 and padded_features(features) < 256
    return {name: each for name, each in BLOCKS.items() if name != "large" or narrow or interpreted()}


def choose(dtype: torch.dtype, width: int, queries: int, keys: int) -> Blocks:
    """Choose blocks for a pass that no `blocks=` forces.

    Args:
        dtype: of q and k.
        width: padded width of a tile's rows.
        queries: T.
        keys: M.

    In the interpreter the choice is `interpreted_blocks`. On a GPU IEEE float32 dots
    take no tensor cores, and larger tiles than 32 by 32 spill.
    """
    if interpreted():
        return interpreted_blocks(queries, keys)
    if dtype == torch.float32:
        return BLOCKS["small"] if width == 256 else BLOCKS["medium"]
    return BLOCKS["medium"] if width == 256 else BLOCKS["large"]
