"""Tiles of every pass by kind of dots and width, on sm_9x; chosen from timings of benchmarks/tuning_lightning.py."""

from __future__ import annotations

from typing import NamedTuple


class Tiles(NamedTuple):
    """What a pass may choose for itself, as no result depends on it: see `blocks.Blocks`."""

    micro: int
    value: int
    num_warps: int
    num_stages: int


PARTS = ("sums", "scan", "gradients", "tangent sums", "tangent", "hessian")

TUNED: dict[tuple[str, int, bool], tuple[Tiles, ...]] = {
    # kind of dots, width, and whether there are more programs than processors
    ("16 bit", 64, False): (
        Tiles(64, 64, 4, 4),  # sums
        Tiles(64, 32, 4, 4),  # scan
        Tiles(64, 64, 4, 3),  # gradients
        Tiles(64, 64, 4, 3),  # tangent sums
        Tiles(64, 32, 4, 3),  # tangent
        Tiles(64, 64, 4, 2),  # hessian
    ),
    ("16 bit", 64, True): (
        Tiles(64, 64, 4, 4),  # sums
        Tiles(64, 64, 4, 4),  # scan
        Tiles(64, 64, 4, 3),  # gradients
        Tiles(64, 64, 4, 3),  # tangent sums
        Tiles(64, 64, 4, 2),  # tangent
        Tiles(64, 64, 4, 2),  # hessian
    ),
    ("16 bit", 128, False): (
        Tiles(64, 64, 4, 4),  # sums
        Tiles(64, 64, 4, 3),  # scan
        Tiles(64, 64, 4, 4),  # gradients
        Tiles(64, 64, 4, 3),  # tangent sums
        Tiles(64, 64, 4, 2),  # tangent
        Tiles(32, 64, 4, 2),  # hessian
    ),
    ("16 bit", 128, True): (
        Tiles(64, 64, 4, 3),  # sums
        Tiles(64, 64, 4, 3),  # scan
        Tiles(64, 64, 4, 3),  # gradients
        Tiles(64, 64, 4, 3),  # tangent sums
        Tiles(32, 64, 4, 2),  # tangent
        Tiles(32, 64, 4, 2),  # hessian
    ),
    ("split", 64, False): (
        Tiles(32, 16, 2, 1),  # sums
        Tiles(32, 16, 2, 1),  # scan
        Tiles(16, 32, 2, 2),  # gradients
        Tiles(32, 16, 2, 1),  # tangent sums
        Tiles(16, 16, 2, 1),  # tangent
        Tiles(16, 32, 2, 1),  # hessian
    ),
    ("split", 64, True): (
        Tiles(32, 32, 2, 1),  # sums
        Tiles(16, 32, 2, 2),  # scan
        Tiles(16, 32, 2, 2),  # gradients
        Tiles(32, 32, 2, 1),  # tangent sums
        Tiles(16, 32, 2, 1),  # tangent
        Tiles(16, 32, 2, 1),  # hessian
    ),
    ("split", 128, False): (
        Tiles(32, 16, 2, 1),  # sums
        Tiles(16, 16, 2, 1),  # scan
        Tiles(16, 16, 2, 1),  # gradients
        Tiles(32, 16, 2, 1),  # tangent sums
        Tiles(16, 16, 2, 1),  # tangent
        Tiles(16, 32, 2, 1),  # hessian
    ),
    ("split", 128, True): (
        Tiles(32, 16, 2, 1),  # sums
        Tiles(16, 32, 2, 1),  # scan
        Tiles(16, 16, 2, 1),  # gradients
        Tiles(32, 16, 2, 1),  # tangent sums
        Tiles(16, 16, 2, 1),  # tangent
        Tiles(16, 32, 2, 1),  # hessian
    ),
}
