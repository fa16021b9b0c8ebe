"""Tiles of every pass of 16-bit problems by width, on sm_9x; chosen from timings of benchmarks/tuning_lightning.py."""

from __future__ import annotations

from typing import NamedTuple


class Tiles(NamedTuple):
    """What a pass may choose for itself, as no result depends on it: see `blocks.Blocks`."""

    micro: int
    value: int
    num_warps: int
    num_stages: int


PARTS = ("sums", "scan", "gradients", "tangent sums", "tangent", "hessian")

TUNED: dict[int, tuple[Tiles, ...]] = {
    64: (
        Tiles(64, 64, 4, 3),  # sums
        Tiles(64, 64, 4, 3),  # scan
        Tiles(64, 64, 4, 2),  # gradients
        Tiles(64, 64, 4, 2),  # tangent sums
        Tiles(64, 64, 4, 2),  # tangent
        Tiles(64, 64, 4, 2),  # hessian
    ),
    128: (
        Tiles(64, 64, 4, 3),  # sums
        Tiles(64, 64, 4, 2),  # scan
        Tiles(64, 64, 4, 2),  # gradients
        Tiles(64, 64, 4, 2),  # tangent sums
        Tiles(32, 32, 4, 2),  # tangent
        Tiles(32, 32, 4, 2),  # hessian
    ),
}
