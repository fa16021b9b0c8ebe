"""Block configurations of the gated delta kernels, which choice is automatic, and the memory that they take."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from ..blocks import dots_of, interpreted, tuned_for
from .tuned import PARTS, TUNED

CHUNKS = (16, 32, 64)
"""Rows that a chunk may have: a chunk is inverted by blocks of 16 rows, of which it has one, two or four."""

ENOUGH_PROGRAMS = 64
"""From how many programs of `COLUMNS` columns on a head's sequence is left whole: half of the 132 processors of an
H100, since pieces run twice."""

PROGRAMS = 256
"""How many programs a launch aims at where sequences are cut, whatever the device, so that its bits are the same."""

COLUMNS = 32
"""Columns of v that a program counts as, whatever the tiles of a pass are."""

LARGEST_PIECES = 32
"""In how many pieces a sequence is cut at most: their states follow one another in one program."""

SHORTEST_PIECE = 16
"""How many chunks an automatic piece has at least."""

SPLIT_WARPS = 2
"""Warps of a program of float32 on tensor cores at most: four take wgmma, of which ptxas 12.8, that of Triton 3.6 and
3.7, makes wrong code in some of lightning's passes (results/h100/wgmma_of_ptxas.txt)."""


class Blocks(NamedTuple):
    """One block configuration of a gated delta kernel.

    `chunk` rows, 16, 32 or 64, are a chunk. A program of the recurrences, and of those that multiply with v, has
    `value` columns of v; that of gradients has `feature` columns of q and k at a time: powers of two, at least 16.
    `piece` rows, a multiple of `chunk`, are a piece of a sequence, all of which run at a time; 0 leaves it to
    `piece_chunks`. `num_warps` and `num_stages` are Triton's launch options, the former of all passes but that which
    inverts a chunk. The interpreter ignores both.
    """

    chunk: int
    value: int = 32
    feature: int = 32
    piece: int = 0
    num_warps: int = 4
    num_stages: int = 1


BLOCKS: dict[str, Blocks] = {
    "short": Blocks(16, value=16, feature=32, piece=32),
    "narrow": Blocks(32, value=32, feature=32, piece=64),
    "square": Blocks(64, value=64, feature=32),
}
"""Every shipped configuration by name; `blocks=` forces one on every pass. `fitting` says which fit a dtype."""
AUTOMATIC: dict[str, Blocks] = {
    "16 bit": BLOCKS["square"],
    "ieee": BLOCKS["narrow"]._replace(piece=0),
    "split": BLOCKS["narrow"]._replace(piece=0),
}
"""By kind of dots what a GPU has where nothing is forced; a row of `tuned` says more of each pass."""


def fitting(dtype: torch.dtype) -> dict[str, Blocks]:
    """Return the shipped configurations that every pass can run for this dtype, at any D and Dv."""
    return {name: each for name, each in BLOCKS.items() if dtype != torch.float32 or each.chunk < 64}


def padded(features: int) -> int:
    """Return the width of a tile's rows, 64 or 128: a power of two that holds D or Dv.

    Each is one more compilation of every kernel. None is 32, of which the ptxas of Triton 3.6 and 3.7 makes wrong code
    for sm_90 in 16 bit: `wgmma_of_ptxas.txt` in benchmarks/results/h200. The interpreter, which sees what is touched
    outside of a tensor, is given the same tiles.
    """
    return 64 if features <= 64 else 128


def feature_columns(blocks: Blocks, dots: str, width: int, capability: tuple[int, int]) -> int:
    """Return how many columns of q and k, padded to `width`, a program of gradients has at a time.

    In 16 bit they are 32 or more, and on sm_9x all of 64: with fewer and four warps the ptxas of Triton 3.6 makes wrong
    code there (dk is off by its size, or an address is illegal; measured on an H200). With all of 64 Triton 3.7 has no
    code for sm_100, and on sm_80 more is spilled.
    """
    least = 16 if dots != "16 bit" else width if width <= 64 and capability[0] == 9 else 32
    return min(max(blocks.feature, least), width)


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
    tiles = TUNED[tuned_for(capability), dots, padded(features)][PARTS.index(part)]
    return blocks._replace(**tiles._asdict())


def forced_on(blocks: Blocks, part: str, dots: str) -> Blocks:
    """Return blocks that are forced, as one pass has them.

    One warp inverts a chunk. The states that pieces start from have 16 columns and 8 warps, as no other number compiles
    without spilling. Elsewhere float32 on tensor cores has `SPLIT_WARPS` at most.
    """
    if part == "inverse":
        return blocks._replace(num_warps=1)
    if part == "entries":
        return blocks._replace(value=16, num_warps=8)
    return blocks._replace(num_warps=min(blocks.num_warps, SPLIT_WARPS)) if dots == "split" else blocks


def piece_chunks(blocks: Blocks, chunks: int, heads: int, values: int) -> int:
    """Return how many chunks a piece has; it depends on sizes alone, so that bits do.

    Args:
        blocks: of the problem.
        chunks: of a sequence.
        heads: of all members of the batch.
        values: Dv.
    """
    if blocks.piece:
        return max(blocks.piece // blocks.chunk, triton.cdiv(chunks, LARGEST_PIECES))
    programs = heads * (padded(values) // COLUMNS)
    pieces = 1 if programs >= ENOUGH_PROGRAMS else min(LARGEST_PIECES, PROGRAMS // programs, chunks // SHORTEST_PIECE)
    return triton.cdiv(chunks, max(1, pieces))


def workspace_bytes(
    *, batch: int, heads: int, rows: int, features: int, value_features: int, chunk: int, pieces: int, itemsize: int,
    backward: bool,
) -> int:  # fmt: skip
    """Return the bytes allocated besides inputs, outputs and gradients: of a forward, or of a VJP after it.

    A forward keeps the decays, 8 bytes a row, and the inverse, `chunk` elements a row, for the VJP; and of several
    pieces, at most 32, what they start from and what they make of it. The state before each chunk and the updates it
    does not keep: a VJP makes these again, and their cotangents. `itemsize` is that of the dtype of q; rows are padded
    to whole chunks, D and Dv to the width of tiles.
    """
    chunks = triton.cdiv(rows, chunk)
    width, values = padded(features), padded(value_features)
    own = chunks * (8 * chunk + itemsize * chunk * chunk)
    states, updates = (itemsize * chunks * size * values for size in (width, chunk))
    start, moves = (4 * (pieces if pieces > 1 else 0) * width * size for size in (values, width))
    own += 2 * start + moves
    return batch * heads * (own + (2 * states + 3 * updates + 2 * start if backward else states + updates))
