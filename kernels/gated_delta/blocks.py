"""Block configurations of the gated delta kernels, which choice is automatic, and the memory that they take."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from ..blocks import dots_of, interpreted
from .tuned import PARTS, TUNED, tuned_for

CHUNKS = (16, 32, 64)
"""Rows that a chunk may have: a chunk is inverted by blocks of 16 rows, of which it has one, two or four."""

SPLIT_WARPS = 2
"""Warps of a program of float32 on tensor cores at most: four take wgmma, of which ptxas 12.8, that of Triton 3.6 and
3.7, makes wrong code in some of lightning's passes (results/h100/wgmma_of_ptxas.txt)."""


class Blocks(NamedTuple):
    """One block configuration of a gated delta kernel.

    `chunk` rows, 16, 32 or 64, are a chunk. A program of the recurrences, and of those that multiply with v, has
    `value` columns of v; that of gradients has `feature` columns of q and k at a time: powers of two, at least 16.
    `num_warps` and `num_stages` are Triton's launch options; a chunk is inverted by one warp whatever they are. The
    interpreter ignores both.
    """

    chunk: int
    value: int = 32
    feature: int = 32
    num_warps: int = 4
    num_stages: int = 1


BLOCKS: dict[str, Blocks] = {
    "short": Blocks(16, value=16, feature=32),
    "narrow": Blocks(32, value=32, feature=32),
    "square": Blocks(64, value=64, feature=32),
}
"""Every shipped configuration by name; `blocks=` forces one on every pass. `fitting` says which fit a dtype."""
AUTOMATIC: dict[str, Blocks] = {
    "16 bit": BLOCKS["square"],
    "ieee": BLOCKS["narrow"],
    "split": BLOCKS["narrow"],
}
"""By kind of dots what a GPU has where nothing is forced; a row of `tuned` says more of each pass."""


def fitting(dtype: torch.dtype) -> dict[str, Blocks]:
    """Return the shipped configurations that every pass can run for this dtype, at any D and Dv."""
    return {name: each for name, each in BLOCKS.items() if dtype != torch.float32 or each.chunk < 64}


def padded(features: int) -> int:
    """Return the width of a tile's rows: a power of two that holds D or Dv.

    It is 32, 64 or 128: each is one more compilation of every kernel. The interpreter, which sees what is touched
    outside of a tensor, is given the same tiles.
    """
    return max(32, triton.next_power_of_2(features))


def feature_columns(blocks: Blocks, dots: str, width: int) -> int:
    """Return how many columns of q and k, padded to `width`, a program of gradients has at a time.

    In 16 bit it has all of 64: with fewer the ptxas of Triton 3.6 makes wrong code for sm_90 (dk is off by as much as it
    is, or an address is illegal; measured on an H200, with four warps), as with 16 of 128.
    """
    least = min(width, 64) if dots == "16 bit" and width <= 64 else 32 if dots == "16 bit" else 16
    return min(max(blocks.feature, least), width)


def value_columns(blocks: Blocks, width: int) -> int:
    """Return how many columns of v, padded to `width`, a program has."""
    return min(blocks.value, width)


def choose(dtype: torch.dtype, precision: str, rows: int) -> Blocks:
    """Choose blocks where no `blocks=` forces them.

    Args:
        dtype: of q, k and v.
        precision: of the dots of float32.
        rows: T.

    The interpreter charges for steps and programs: it has every column in one program.
    """
    if interpreted():
        return Blocks(16 if rows <= 64 else 32 if rows <= 512 else 64, value=128, feature=128)
    return AUTOMATIC[dots_of(dtype, precision)]


def of_part(blocks: Blocks, part: str, dots: str, features: int, capability: tuple[int, int]) -> Blocks:
    """Return the blocks of one pass of a problem that forces none, on a GPU.

    Args:
        blocks: what `choose` returned.
        part: the pass, one of `tuned.PARTS`.
        dots: their kind, as in `AUTOMATIC`.
        features: the larger of D and Dv.
        capability: of the GPU.

    Its chunk is that of every pass. The rest is a row of `tuned`.
    """
    tiles = TUNED[tuned_for(capability), dots, max(64, padded(features))][PARTS.index(part)]
    return blocks._replace(**tiles._asdict())


def few_warps(blocks: Blocks, part: str, dots: str) -> Blocks:
    """Return blocks that are forced, with no more warps than a pass or its kind of dots may have.

    A chunk is inverted by one. Dots of float32 on tensor cores have `SPLIT_WARPS` at most.
    """
    most = 1 if part == "inverse" else SPLIT_WARPS if dots == "split" else blocks.num_warps
    return blocks._replace(num_warps=min(blocks.num_warps, most))


def workspace_bytes(
    *, batch: int, heads: int, rows: int, features: int, value_features: int, chunk: int, itemsize: int, backward: bool
) -> int:
    """Return the bytes allocated besides inputs, outputs and gradients: of a forward, or of a VJP after it.

    A forward keeps the decays, 8 bytes a row, and the inverse, `chunk` elements a row, for the VJP; the state before
    each chunk and the updates it does not keep. A VJP makes these again, and their cotangents. `itemsize` is that of
    the dtype of q; rows are padded to whole chunks, D and Dv to the width of tiles.
    """
    chunks = triton.cdiv(rows, chunk)
    width, values = padded(features), padded(value_features)
    own = chunks * (8 * chunk + itemsize * chunk * chunk)
    states, updates = (itemsize * chunks * size * values for size in (width, chunk))
    return batch * heads * (own + (2 * states + 3 * updates if backward else states + updates))
