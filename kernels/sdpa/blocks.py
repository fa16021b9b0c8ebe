"""Block configurations: how many queries and keys one program holds at a time, and which choice is automatic."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from triton.runtime.interpreter import InterpretedFunction


class Blocks(NamedTuple):
    """One block configuration of an SDPA kernel.

    `query` and `key` are rows of q and rows of k (and v) per tile: powers of two, at least 16, which is the least that
    a tensor-core dot takes. `num_warps` and `num_stages` are Triton's launch options; the interpreter ignores them.
    """

    query: int
    key: int
    num_warps: int = 4
    num_stages: int = 2


BLOCKS: dict[str, Blocks] = {
    "small": Blocks(16, 16, num_warps=1, num_stages=1),
    "tall": Blocks(64, 16, num_warps=4, num_stages=1),
    "wide": Blocks(16, 64, num_warps=4, num_stages=1),
    "medium": Blocks(32, 32, num_warps=4, num_stages=1),
    "large": Blocks(64, 64, num_warps=4, num_stages=2),
    "huge": Blocks(128, 64, num_warps=8, num_stages=2),
}
"""Every shipped configuration by name; each may be forced with `blocks=`, in any pass."""

INTERPRETED_TILE = 1 << 17
"""Elements of a score tile in the interpreter, where an operation costs about 0.05 ms however small its tile is."""


@triton.jit
def _decorated() -> None:
    """Do nothing: its type says whether Triton interpreted or compiled when this package was imported."""


def interpreted() -> bool:
    """Say whether these kernels run in Triton's interpreter, which TRITON_INTERPRET decides at their import."""
    return isinstance(_decorated, InterpretedFunction)


def padded_features(features: int, value_features: int) -> int:
    """Return the width of a tile's rows: the power of two, at least 16, that holds D and Dv.

    One width serves both, so that a compiled kernel is one of four (16, 32, 64, 128) and not one of sixteen.
    """
    return max(16, triton.next_power_of_2(max(features, value_features)))


def choose(derivative: int, dtype: torch.dtype, features: int, queries: int, keys: int) -> Blocks:
    """Choose blocks for a pass that no `blocks=` forces.

    Args:
        derivative: order of the derivative that the pass computes: 0 forward, 1 VJP and JVP, 2 HVP. Each order holds
            more tiles of `features` columns at once.
        dtype: dtype of q, k and v.
        features: padded width of a tile's rows.
        queries: T.
        keys: M.

    In the interpreter tiles are as large as the problem, up to `INTERPRETED_TILE` scores. On a GPU the choice keeps
    every pass within 99 KiB of shared memory (tests compile each for sm_80 and sm_90 and read the figure).
    """
    if interpreted():
        key = min(256, max(16, triton.next_power_of_2(keys)))
        query = min(INTERPRETED_TILE // key, max(16, triton.next_power_of_2(queries)))
        return Blocks(query, key)
    wide = features == 128
    if dtype == torch.float32:
        return BLOCKS["medium"] if derivative == 0 and not wide else BLOCKS["small"]
    if derivative == 0:
        return BLOCKS["large"] if wide else BLOCKS["huge"]
    return BLOCKS["medium"] if wide and derivative == 2 else BLOCKS["large"]
