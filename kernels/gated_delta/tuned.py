"""Tiles of every pass by capability, kind of dots and width."""

from __future__ import annotations

from typing import NamedTuple


class Tiles(NamedTuple):
    """What a pass may choose for itself, as no result depends on it: see `blocks.Blocks`."""

    value: int
    feature: int
    num_warps: int
    num_stages: int


PARTS = ("inverse", "states", "output", "local", "costates", "gradients")

TUNED: dict[tuple[tuple[int, int], str, int], tuple[Tiles, ...]] = {
    # capability, kind of dots, width
    (capability, dots, width): (
        Tiles(32, 32, 1, 1),  # inverse
        Tiles(32, 32, 4, 2),  # states
        Tiles(64, 32, 4, 1),  # output
        Tiles(64, 32, 4, 1),  # local
        Tiles(32, 32, 4, 1),  # costates
        Tiles(32, 32, 4, 1),  # gradients
    )
    for capability in ((8, 0), (9, 0))
    for dots in ("16 bit", "ieee", "split")
    for width in (64, 128)
}


def tuned_for(capability: tuple[int, int]) -> tuple[int, int]:
    """Return whose row serves a capability: on sm_9x that of sm_90, on any other that of sm_80."""
    return (9, 0) if capability[0] == 9 else (8, 0)
