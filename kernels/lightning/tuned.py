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

TUNED: dict[tuple[int, bool], tuple[Tiles, ...]] = {  # width, and whether there are more programs than processors
    (64, False): (
        Tiles(64, 64, 4, 4),  # sums
        Tiles(64, 32, 4, 4),  # scan
        Tiles(64, 64, 4, 3),  # gradients
        Tiles(64, 64, 4, 3),  # tangent sums
        Tiles(64, 32, 4, 3),  # tangent
        Tiles(64, 64, 4, 2),  # hessian
    ),
    (64, True): (
        Tiles(64, 64, 4, 4),  # sums
        Tiles(64, 64, 4, 4),  # scan
        Tiles(64, 64, 4, 3),  # gradients
        Tiles(64, 64, 4, 3),  # tangent sums
        Tiles(64, 64, 4, 2),  # tangent
        Tiles(64, 64, 4, 2),  # hessian
    ),
    (128, False): (
        Tiles(64, 64, 4, 4),  # sums
        Tiles(64, 64, 4, 3),  # scan
        Tiles(64, 64, 4, 4),  # gradients
        Tiles(64, 64, 4, 3),  # tangent sums
        Tiles(64, 64, 4, 2),  # tangent
        Tiles(32, 64, 4, 2),  # hessian
    ),
    (128, True): (
        Tiles(64, 64, 4, 3),  # sums
        Tiles(64, 64, 4, 3),  # scan
        Tiles(64, 64, 4, 3),  # gradients
        Tiles(64, 64, 4, 3),  # tangent sums
        Tiles(32, 64, 4, 2),  # tangent
        Tiles(32, 64, 4, 2),  # hessian
    ),
}
