"""Block configurations of the lightning kernels, which choice is automatic, and the workspace that it takes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from ..blocks import dots_of, interpreted
from .tuned import PARTS, TUNED

ENOUGH_PROGRAMS = 128
"""From how many programs on a head's sequence is left whole: about one for each of the 132 processors of an H100."""

PROGRAMS = 256
"""How many programs a launch aims at where sequences are cut, whatever the device, so that its bits are the same."""

SPLIT_PROGRAMS = 512
"""Both of dots of split float32, whose programs wait for each other less than for memory."""

SPLIT_WARPS = 2
"""Warps of a program of split float32 at most: so few take mma.sync. Four take wgmma, of which ptxas 12.8, that of
Triton 3.6 and 3.7, makes wrong code in some of these passes; 12.9 and 13.0 do not (results/h100/wgmma_of_ptxas.txt)."""

LARGEST_PIECES = 64
"""In how many pieces a sequence is cut at most; a program adds up the states of the pieces before its own."""

LONG = 4096
"""From how many rows on the interpreter cuts a sequence."""


class Blocks(NamedTuple):
    """One block configuration of a lightning kernel.

    A program walks over `piece` rows in chunks of `chunk`; scores exist as tiles of `chunk` queries by `micro` keys,
    and `value` columns of v are one program's. `chunk`, `micro` and `value` are powers of two, at least 16; `micro`
    divides `chunk`, which divides `piece`. `piece` = 0 leaves the length of a piece to `piece_rows`. `num_warps` and
    `num_stages` are Triton's launch options, the latter of scans only: their tangents, which load twice the tiles, run
    in one stage where blocks are not tuned. The interpreter ignores both.
    """

    chunk: int
    micro: int
    value: int = 64
    piece: int = 0
    num_warps: int = 4
    num_stages: int = 1


BLOCKS: dict[str, Blocks] = {
    "narrow": Blocks(32, 16, value=32, piece=32),
    "tall": Blocks(64, 16, value=32, piece=128),
    "square": Blocks(64, 64, value=64, num_stages=3),
}
"""Every shipped configuration by name; `blocks=` forces one on every pass. `fitting` says which fit a dtype."""
AUTOMATIC: dict[str, Blocks] = {
    "16 bit": BLOCKS["square"],
    "ieee": BLOCKS["narrow"]._replace(piece=0),
    "split": Blocks(32, 16, value=32, num_warps=SPLIT_WARPS),
}
"""By kind of dots what a GPU has where nothing is forced; IEEE float32 takes no tensor cores, larger tiles spill."""


def fitting(dtype: torch.dtype) -> dict[str, Blocks]:
    """Return the shipped configurations that every pass, the HVP included, can run for this dtype, at any D and Dv.

    Where scores are operands of tensor cores they stay in registers, or on sm_100 in tensor memory. IEEE float32 dots
    take no tensor cores: scores pass through shared memory, which "square" would have grow with two chunk lengths.
    """
    return {name: each for name, each in BLOCKS.items() if dtype != torch.float32 or each.micro < each.chunk}


def padded(features: int) -> int:
    """Return the width of a tile's rows: a power of two that holds D or Dv.

    It is 32, 64 or 128: each is one more compilation of every kernel. The interpreter, which sees what is touched
    outside of a tensor, is given the same tiles.
    """
    return max(32, triton.next_power_of_2(features))


def value_columns(blocks: Blocks, features: int) -> int:
    """Return how many columns of v, or of what stands in its place, a program has.

    It is `blocks.value` where compiled or where a shipped configuration is forced.
    """
    compiled = not interpreted() or blocks in BLOCKS.values()
    return blocks.value if compiled else min(blocks.value, padded(features))


def programs_of_head(blocks: Blocks, columns: int, width: int) -> int:
    """Return how many programs a head that is not cut counts as, whatever the tiles of a pass are.

    Args:
        blocks: of the problem.
        columns: of the result.
        width: features of the scores.

    A program is half as wide as scores are, but at least 32 columns and at most `blocks.value`.
    """
    return triton.cdiv(columns, min(value_columns(blocks, columns), max(32, padded(width) // 2)))


def choose(dtype: torch.dtype, precision: str, rows: int) -> Blocks:
    """Choose blocks where no `blocks=` forces them.

    Args:
        dtype: of q, k and v.
        precision: of the dots of float32.
        rows: N.

    The interpreter charges for steps, and programs in step share them: a long sequence is cut into 32 pieces, of short
    chunks, since a budget writes every score within a chunk, sixteen times.
    """
    if interpreted():
        chunk, pieces = (32, 32) if rows > LONG else (64, 1)
        return Blocks(chunk, chunk, value=128, piece=triton.cdiv(rows, chunk * pieces) * chunk)
    return automatic(dtype, precision)


def automatic(dtype: torch.dtype, precision: str) -> Blocks:
    """Return the blocks of a GPU where none are forced."""
    return AUTOMATIC[dots_of(dtype, precision)]


def of_part(blocks: Blocks, part: str, dots: str, features: int, programs: int, capability: tuple[int, int]) -> Blocks:
    """Return the blocks of one pass of a problem that forces none, on a GPU.

    Args:
        blocks: what `automatic` returned.
        part: the pass, one of `tuned.PARTS`.
        dots: their kind, as in `AUTOMATIC`.
        features: D of the launch.
        programs: of all pieces of all heads, as `programs_of_head` counts them.
        capability: of the GPU.

    Its chunk is that of every pass, since results depend on it. The rest is a row of `tuned` where there is one.
    """
    if not has_tuned(dots, capability):
        return in_one_stage(blocks, part)
    width = max(64, padded(features))
    tiles = TUNED[dots, width, programs > ENOUGH_PROGRAMS][PARTS.index(part)]
    return blocks._replace(**tiles._asdict())


def has_tuned(dots: str, capability: tuple[int, int]) -> bool:
    """Return whether passes have tiles of their own: those on tensor cores on sm_9x, the only ones that were timed."""
    return dots != "ieee" and capability[0] == 9


def in_one_stage(blocks: Blocks, part: str) -> Blocks:
    """Return blocks that were not tuned for a pass: of a pass that loads tangents too in one stage."""
    return blocks._replace(num_stages=1) if part in ("tangent sums", "tangent", "hessian") else blocks


def few_enough_warps(blocks: Blocks, dots: str) -> Blocks:
    """Return blocks that are forced with no more warps than their kind of dots may have."""
    return blocks._replace(num_warps=min(blocks.num_warps, SPLIT_WARPS)) if dots == "split" else blocks


def piece_rows(blocks: Blocks, dots: str, rows: int, programs: int) -> int:
    """Return how many rows a piece has, a multiple of the chunk, where `programs` would run on whole sequences."""
    if blocks.piece:
        shortest = triton.cdiv(triton.cdiv(rows, LARGEST_PIECES), blocks.chunk) * blocks.chunk
        return max(blocks.piece, shortest)
    enough, aim = ENOUGH_PROGRAMS, PROGRAMS
    if dots == "split":
        enough = aim = SPLIT_PROGRAMS
    pieces = 1 if programs >= enough else min(LARGEST_PIECES, aim // programs, max(1, rows // 512))
    return triton.cdiv(triton.cdiv(rows, pieces), blocks.chunk) * blocks.chunk


def workspace_bytes(*, batch: int, heads: int, features: int, value_features: int, pieces: int) -> int:
    """Return the bytes of the states that are kept between pieces: a float32 [D, Dv] a head and piece but the last.

    Nothing else is allocated besides inputs and outputs. Forward keeps one such workspace for backward; a VJP adds one,
    a JVP one, an HVP three. `pieces` is at most 64, and where it is automatic at most N / 512: the memory is linear in
    N, at most D Dv / 128 bytes a row and head for each workspace.
    """
    return 4 * batch * heads * (pieces - 1) * features * value_features
