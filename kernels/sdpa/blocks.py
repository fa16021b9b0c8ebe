"""Block configurations of the SDPA kernels, and which choice is automatic."""

from __future__ import annotations

import torch
import triton

from ..blocks import Blocks, interpreted, interpreted_blocks

BLOCKS: dict[str, Blocks] = {
    "small": Blocks(16, 16, num_warps=4, num_stages=1),
    "wide": Blocks(16, 64, num_warps=4, num_stages=1),
    "tall": Blocks(64, 16, num_warps=4, num_stages=1),
    "medium": Blocks(32, 32, num_warps=8, num_stages=1),
    "oblong": Blocks(64, 32, num_warps=4, num_stages=2),
    "large": Blocks(64, 64, num_warps=4, num_stages=2),
    "huge": Blocks(128, 64, num_warps=8, num_stages=2),
}
"""Every shipped configuration by name; `blocks=` forces one on every pass. `fitting` says which fit a problem."""


def padded_features(features: int, value_features: int) -> int:
    """Return the width of a tile's rows: the power of two, at least 16, that holds D and Dv.

    One width serves both, so that a compiled kernel is one of four (16, 32, 64, 128) and not one of sixteen.
    """
    return max(16, triton.next_power_of_2(max(features, value_features)))


def fitting(dtype: torch.dtype, features: int, value_features: int) -> dict[str, Blocks]:
    """Return the shipped configurations that every pass, the HVP included, can run for this dtype, D and Dv.

    In the interpreter all of them; on a GPU those that compile in seconds and take at most 227 KiB of shared memory,
    what a program can have on sm_90. In float32, whose IEEE dots take no tensor cores, large tiles spill thousands of
    registers.
    """
    if interpreted():
        return dict(BLOCKS)
    names = ["small", "wide", "tall", "medium"]
    if dtype != torch.float32:
        names += (
            ["oblong", "large"] if padded_features(features, value_features) == 128 else ["oblong", "large", "huge"]
        )
    return {name: BLOCKS[name] for name in names}


def choose(derivative: int, dtype: torch.dtype, features: int, queries: int, keys: int) -> Blocks:
    """Choose blocks for a pass that no `blocks=` forces.

    Args:
        derivative: order of the derivative that the pass computes: 0 forward, 1 VJP and JVP, 2 HVP. Each order holds
            more tiles of `features` columns at once.
        dtype: dtype of q, k and v.
        features: padded width of a tile's rows.
        queries: T.
        keys: M.

    In the interpreter the choice is `interpreted_blocks`. On a GPU it is the largest that keeps the pass within 99 KiB
    of shared memory on sm_80 and sm_90, spilling little; both were read off offline compilations with Triton 3.7.1, and
    a test compiles them again.
    """
    if interpreted():
        return interpreted_blocks(queries, keys)
    wide = features == 128
    if dtype == torch.float32:
        return BLOCKS["small"] if wide and derivative == 2 else BLOCKS["medium"]
    if derivative == 0:
        return BLOCKS["huge"]
    if wide:
        return BLOCKS["oblong"] if derivative == 1 else BLOCKS["medium"]
    return BLOCKS["large"]
