"""Block configurations of the SDPA kernels, and which choice is automatic."""

from __future__ import annotations

import torch
import triton

from ..blocks import Blocks, dots_of, interpreted, interpreted_blocks, tuned_for
from .tuned import PARTS, TUNED

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
TUNED_FEATURES = (64, 128)


def padded_features(features: int, value_features: int) -> int:
    """Return the width of a tile's rows: the power of two, at least 16, that holds D and Dv.

    One width serves both, so that a compiled kernel is of four widths (16, 32, 64, 128) and not of sixteen.
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


def choose(
    part: str,
    dtype: torch.dtype,
    precision: str,
    features: int,
    queries: int,
    keys: int,
    capability: tuple[int, int] = (9, 0),
) -> Blocks:
    """Choose blocks for a pass that no `blocks=` forces.

    Args:
        part: the pass, one of `tuned.PARTS`.
        dtype: dtype of q, k and v.
        precision: of the dots of float32.
        features: padded width of a tile's rows.
        queries: T.
        keys: M.
        capability: of the GPU.

    In the interpreter the choice is `interpreted_blocks`. On a GPU it is a row of `tuned`, which `benchmarks/tuning.py`
    makes, for the capability that `tuned_for` says.
    """
    if interpreted():
        return interpreted_blocks(queries, keys)
    width = next(each for each in TUNED_FEATURES if features <= each)
    return TUNED[tuned_for(capability), dots_of(dtype, precision), width][PARTS.index(part)]
