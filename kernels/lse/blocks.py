"""Block configurations of the LSE kernels, and which choice is automatic."""

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
    "large": Blocks(64, 64, num_warps=4, num_stages=2),
}
"""Every shipped configuration by name; `blocks=` forces one on every pass."""
TUNED_FEATURES = (64, 128)
WIDEST = {"forward": 128, "dq": 128, "dkv": 128, "jvp": 64, "hq": 64, "hk": 64}
"""Up to how many features a pass in "bf16x6" takes parts of q and k (`splitting.operands`)."""


def padded_features(features: int, blocks: Blocks) -> int:
    """Return the width of a tile's rows: a power of two that holds D.

    It is 32, 64, 128 or 256, and where a side of the tile is 16, which is never the automatic choice up to D = 128, 64
    or 256: each width is one more compilation of every kernel. The interpreter, which sees what is touched outside of a
    tensor, is given the same tiles.
    """
    width = triton.next_power_of_2(features)
    if min(blocks.query, blocks.key) == 16:
        return 64 if width <= 64 else 256
    return max(32, width)


def fitting(dtype: torch.dtype, features: int) -> dict[str, Blocks]:
    """Return the shipped configurations that every pass, the HVP included, can run for this dtype and D.

    In the interpreter all of them; on a GPU not "large" for float32, whose IEEE dots take no tensor cores and spill,
    nor for more than 128 features, whose four tiles take more shared memory than a program can have.
    """
    narrow = dtype != torch.float32 and features <= 128
    return {name: each for name, each in BLOCKS.items() if name != "large" or narrow or interpreted()}


def choose(
    step: str,
    dtype: torch.dtype,
    precision: str,
    features: int,
    queries: int,
    keys: int,
    capability: tuple[int, int] = (9, 0),
) -> Blocks:
    """Choose blocks for a pass that nothing forces.

    Args:
        step: the pass, one of `tuned.PARTS`.
        dtype: of q and k.
        precision: of the dots of float32.
        features: D.
        queries: T.
        keys: M.
        capability: of the GPU.

    In the interpreter the choice is `interpreted_blocks`. On a GPU it is a row of `tuned`, which `benchmarks/tuning.py`
    makes, for the capability that `tuned_for` says; above D = 128, where nothing was timed, tiles that spill little.
    """
    if interpreted():
        return interpreted_blocks(queries, keys)
    width = next((each for each in TUNED_FEATURES if features <= each), None)
    if width is None:
        return BLOCKS["small" if dtype == torch.float32 else "medium"]
    return TUNED[tuned_for(capability), dots_of(dtype, precision), width][PARTS.index(step)]


def specialised(blocks: Blocks, automatic: Blocks) -> bool:
    """Return whether aligned rows, and plain scores, have compilations of their own: not where a shipped one is forced.

    A shipped configuration that is not the automatic one is there to be compared with: one compilation serves whatever
    it is given. Sizes of the caller's own are there for speed.
    """
    return blocks not in BLOCKS.values() or interpreted() or blocks == automatic


def with_launch_options(query: int, key: int, dtype: torch.dtype) -> Blocks:
    """Return blocks of these sizes: a shipped configuration where there is one.

    Else 4 warps, 8 beyond 64 x 64 scores; two tiles are held at once where both sides are 64 or more of a 16-bit dtype.
    """
    shipped = (each for each in BLOCKS.values() if (each.query, each.key) == (query, key))
    num_stages = 2 if dtype != torch.float32 and min(query, key) >= 64 else 1
    return next(shipped, Blocks(query, key, num_warps=4 if query * key <= 4096 else 8, num_stages=num_stages))
