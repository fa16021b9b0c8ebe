"""The two paths of the semi-CRF kernels, their block configurations, which is automatic, and their workspaces."""

from __future__ import annotations

import math
from typing import NamedTuple

import triton

from ..blocks import interpreted

PATHS = ("sequential", "parallel")

LARGEST_STATES = 64
"""Up to which K C the automatic path is parallel: it computes each chunk once for each of K C start states."""

SHORTEST_PARALLEL = 128
"""From which T on the automatic path is parallel."""

LARGEST_FORCED_STATES = 256
"""Up to which K C the parallel path runs at all: one program of its scan holds (K C)^2 numbers."""

INTERPRETED_TILE = 1 << 18
"""Elements of a tile in the interpreter, where an operation costs about 0.05 ms however small its tile is."""

PARTS = 512
"""How many programs sum the gradients of shared parameters on the parallel path at most, each into its own part."""

STRETCH = 8
"""How many chunks of the sequential path backward takes at once: alpha of each is recomputed beside the others."""

PROGRAMS = 128
"""About how many programs occupy a GPU: rows are put together in one program where that leaves at least as many."""


class Blocks(NamedTuple):
    """One block configuration of the semi-CRF kernels.

    `chunk` is how many positions lie between two states that are kept: of chunks that run in parallel, or of the
    sequential path's checkpoints, where it is at least K. `tile` is how many numbers a program's largest tile holds, a
    power of two from 16; a ring of K positions that is larger is cut (see `sequential`). `num_warps` and `num_stages`
    are Triton's launch options; the interpreter ignores them.
    """

    chunk: int
    tile: int
    num_warps: int = 4
    num_stages: int = 1


BLOCKS: dict[str, Blocks] = {
    "short": Blocks(8, 64, num_warps=1),
    "medium": Blocks(64, 1024),
    "long": Blocks(256, 4096, num_warps=8),
}
"""Every shipped configuration by name; `blocks=` forces one on every pass."""


def choose_path(positions: int, durations: int, labels: int) -> str:
    """Choose the path where no `path=` forces one: by T, K and C alone, so that no sequence depends on its batch."""
    few = durations * labels <= LARGEST_STATES
    return "parallel" if few and positions >= SHORTEST_PARALLEL else "sequential"


def choose(path: str, positions: int, durations: int, labels: int, per_duration: bool) -> Blocks:
    """Choose blocks where no `blocks=` forces them.

    Chunks that run in parallel have about sqrt(T / 2) positions, so that steps within chunks and steps from chunk to
    chunk cost alike; checkpoints are sqrt(T K) positions apart, so that they take as much memory as what is computed
    between two of them, of which backward keeps a stretch.
    """
    if path == "parallel":
        chunk = max(16, triton.next_power_of_2(math.isqrt(positions // 2) + 1))
        tile = 1024
    else:
        chunk = max(16, durations, math.isqrt(positions * durations) + 1)
        tile = 4096
    if interpreted():
        return Blocks(chunk, INTERPRETED_TILE)
    ring = padded(durations) * padded(labels) ** (2 if per_duration else 1)
    largest = max(min(tile, ring), padded(labels) ** 2)
    return Blocks(chunk, tile, num_warps=2 if path == "parallel" else 4 if largest < 1024 else 8)


def padded(size: int) -> int:
    """Return the extent of a tile's axis: the power of two that holds a dim, and 4 at least.

    A smaller one gains nothing on a GPU and is one more to compile; the interpreter, which sees what is read outside of
    a tensor, is given the same tiles.
    """
    return max(4, triton.next_power_of_2(size))


def workspace_bytes(
    *, path: str, batch: int, positions: int, durations: int, labels: int, chunk: int, per_duration: bool = False
) -> int:
    """Return how many bytes forward and backward allocate at most, besides inputs, outputs and gradients.

    Args:
        path: "sequential" or "parallel".
        batch, positions, durations, labels: B, T, K, C.
        chunk: of the blocks; at least K on the sequential path.
        per_duration: whether the transition is [K, C, C].

    Everything is float64. Sequential: with chunk = sqrt(T K) the memory is O(B (sqrt(T K) C + K C^2)): 8 chunks and
    K positions of alpha, enter and beta, T / chunk checkpoints of K C for alpha, one of beta at a time, and shared
    parameters with their parts, which take no more than a table. Parallel: three tables of T C, T / chunk operators of
    (K C)^2 with their states, and at most 512 parts.
    """
    states = durations * labels
    chunks = triton.cdiv(positions, chunk)
    pairs = states * labels if per_duration else labels**2
    shared = 4 * (states + pairs) + 2 * batch * (chunks + 8)
    if path == "sequential":
        rows = 4 * (min(STRETCH, chunks) * chunk + durations + 1) + durations * (chunks + 4 + min(STRETCH, chunks))
        parts = states * labels + 2 * durations * labels**2
        return 8 * (batch * rows * labels + shared + parts)
    rows = 3 * (chunks * chunk + 1)
    operators = chunks * (states**2 + 2 * states) + 4 * states
    parts = PARTS * (states + pairs)
    return 8 * (batch * (rows * labels + operators) + shared + parts)
