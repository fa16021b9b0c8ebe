"""Tiles of every pass by capability, kind of dots and width; benchmarks/tuning_gated_delta.py times others."""

from __future__ import annotations

from typing import NamedTuple


class Tiles(NamedTuple):
    """What a pass may choose for itself, as no result depends on it: see `blocks.Blocks`."""

    value: int
    feature: int
    num_warps: int
    num_stages: int


PARTS = ("inverse", "states", "entries", "output", "local", "costates", "gradients")

_FLOAT32: dict[tuple[str, int], tuple[Tiles, ...]] = {  # kind of dots, width: the same on every GPU
    ("ieee", 64): (
        Tiles(32, 32, 2, 1),  # inverse
        Tiles(16, 32, 4, 1),  # states
        Tiles(16, 16, 8, 1),  # entries
        Tiles(16, 32, 4, 1),  # output
        Tiles(32, 32, 4, 1),  # local
        Tiles(16, 32, 4, 1),  # costates
        Tiles(32, 16, 8, 1),  # gradients
    ),
    ("ieee", 128): (
        Tiles(32, 32, 4, 1),  # inverse
        Tiles(16, 32, 8, 1),  # states
        Tiles(16, 16, 8, 1),  # entries
        Tiles(16, 32, 8, 1),  # output
        Tiles(32, 32, 8, 1),  # local
        Tiles(16, 32, 8, 1),  # costates
        Tiles(32, 16, 8, 1),  # gradients
    ),
    **dict.fromkeys(
        [("split", 64), ("split", 128)],
        (
            Tiles(32, 16, 2, 1),  # inverse
            Tiles(16, 16, 2, 1),  # states
            Tiles(16, 16, 8, 1),  # entries
            Tiles(32, 16, 2, 1),  # output
            Tiles(32, 16, 2, 1),  # local
            Tiles(16, 16, 2, 1),  # costates
            Tiles(32, 16, 2, 1),  # gradients
        ),
    ),
}

TUNED: dict[tuple[tuple[int, int], str, int], tuple[Tiles, ...]] = {
    # capability, kind of dots, width
    ((9, 0), "16 bit", 64): (
        Tiles(32, 32, 1, 1),  # inverse
        Tiles(16, 32, 4, 3),  # states
        Tiles(16, 16, 8, 1),  # entries
        Tiles(64, 32, 4, 1),  # output
        Tiles(64, 32, 4, 1),  # local
        Tiles(16, 32, 4, 3),  # costates
        Tiles(32, 64, 4, 1),  # gradients
    ),
    ((9, 0), "16 bit", 128): (
        Tiles(32, 32, 1, 1),  # inverse
        Tiles(32, 32, 4, 3),  # states
        Tiles(16, 16, 8, 1),  # entries
        Tiles(128, 32, 4, 1),  # output
        Tiles(128, 32, 4, 1),  # local
        Tiles(32, 32, 4, 2),  # costates
        Tiles(32, 32, 4, 2),  # gradients
    ),
    ((8, 0), "16 bit", 64): (
        Tiles(32, 32, 1, 1),  # inverse
        Tiles(32, 32, 4, 1),  # states
        Tiles(16, 16, 8, 1),  # entries
        Tiles(64, 32, 4, 1),  # output
        Tiles(64, 32, 4, 1),  # local
        Tiles(32, 32, 4, 1),  # costates
        Tiles(32, 32, 4, 1),  # gradients
    ),
    ((8, 0), "16 bit", 128): (
        Tiles(32, 32, 2, 1),  # inverse
        Tiles(32, 32, 4, 1),  # states
        Tiles(16, 16, 8, 1),  # entries
        Tiles(64, 32, 4, 1),  # output
        Tiles(64, 32, 4, 1),  # local
        Tiles(32, 32, 4, 1),  # costates
        Tiles(32, 16, 8, 1),  # gradients
    ),
    **{(gpu, *work): tiles for gpu in ((9, 0), (8, 0)) for work, tiles in _FLOAT32.items()},
}
