"""Blocks of every pass by capability, kind of dots and width; written by benchmarks/tuning.py."""

from __future__ import annotations

from ..blocks import Blocks

PARTS = ("forward", "dq", "dkv", "jvp", "hq", "hk")

TUNED: dict[tuple[tuple[int, int], str, int], tuple[Blocks, ...]] = {
    ((8, 0), "16 bit", 64): (
        Blocks(64, 128, 4, 2),  # forward
        Blocks(64, 64, 4, 3),  # dq
        Blocks(128, 64, 4, 2),  # dkv
        Blocks(128, 64, 8, 3),  # jvp
        Blocks(64, 64, 4, 2),  # hq
        Blocks(32, 128, 4, 2),  # hk
    ),
    ((8, 0), "16 bit", 128): (
        Blocks(128, 128, 8, 2),  # forward
        Blocks(64, 64, 4, 3),  # dq
        Blocks(64, 64, 4, 3),  # dkv
        Blocks(64, 64, 4, 2),  # jvp
        Blocks(128, 32, 8, 2),  # hq
        Blocks(64, 64, 4, 2),  # hk
    ),
    ((8, 0), "ieee", 64): (
        Blocks(32, 32, 4, 1),  # forward
        Blocks(32, 32, 4, 1),  # dq
        Blocks(32, 32, 4, 1),  # dkv
        Blocks(32, 32, 4, 1),  # jvp
        Blocks(32, 32, 4, 1),  # hq
        Blocks(32, 32, 4, 1),  # hk
    ),
    ((8, 0), "ieee", 128): (
        Blocks(32, 32, 4, 1),  # forward
        Blocks(32, 32, 4, 1),  # dq
        Blocks(32, 32, 4, 1),  # dkv
        Blocks(32, 32, 8, 1),  # jvp
        Blocks(32, 32, 8, 1),  # hq
        Blocks(32, 32, 8, 1),  # hk
    ),
    ((8, 0), "split", 64): (
        Blocks(64, 32, 4, 1),  # forward
        Blocks(64, 32, 4, 2),  # dq
        Blocks(32, 64, 4, 2),  # dkv
        Blocks(16, 32, 4, 1),  # jvp
        Blocks(16, 32, 4, 1),  # hq
        Blocks(16, 32, 4, 1),  # hk
    ),
    ((8, 0), "split", 128): (
        Blocks(16, 32, 4, 1),  # forward
        Blocks(16, 32, 4, 1),  # dq
        Blocks(16, 32, 4, 1),  # dkv
        Blocks(16, 32, 4, 1),  # jvp
        Blocks(16, 16, 4, 1),  # hq
        Blocks(16, 16, 4, 1),  # hk
    ),
    ((9, 0), "16 bit", 64): (
        Blocks(64, 128, 4, 2),  # forward
        Blocks(64, 64, 4, 3),  # dq
        Blocks(128, 64, 4, 2),  # dkv
        Blocks(128, 64, 8, 3),  # jvp
        Blocks(64, 128, 4, 2),  # hq
        Blocks(32, 128, 4, 2),  # hk
    ),
    ((9, 0), "16 bit", 128): (
        Blocks(128, 128, 8, 2),  # forward
        Blocks(64, 64, 4, 3),  # dq
        Blocks(64, 64, 4, 3),  # dkv
        Blocks(128, 64, 8, 3),  # jvp
        Blocks(128, 64, 8, 3),  # hq
        Blocks(64, 64, 4, 2),  # hk
    ),
    ((9, 0), "ieee", 64): (
        Blocks(32, 32, 4, 1),  # forward
        Blocks(32, 32, 4, 1),  # dq
        Blocks(32, 32, 4, 1),  # dkv
        Blocks(32, 32, 4, 1),  # jvp
        Blocks(32, 32, 4, 1),  # hq
        Blocks(32, 32, 4, 1),  # hk
    ),
    ((9, 0), "ieee", 128): (
        Blocks(32, 32, 4, 1),  # forward
        Blocks(32, 32, 4, 1),  # dq
        Blocks(32, 32, 4, 1),  # dkv
        Blocks(32, 32, 8, 1),  # jvp
        Blocks(32, 32, 4, 1),  # hq
        Blocks(32, 32, 8, 1),  # hk
    ),
    ((9, 0), "split", 64): (
        Blocks(128, 64, 8, 2),  # forward
        Blocks(64, 64, 4, 3),  # dq
        Blocks(64, 64, 4, 3),  # dkv
        Blocks(128, 64, 8, 2),  # jvp
        Blocks(128, 64, 8, 2),  # hq
        Blocks(64, 128, 8, 2),  # hk
    ),
    ((9, 0), "split", 128): (
        Blocks(128, 64, 8, 2),  # forward
        Blocks(128, 64, 8, 2),  # dq
        Blocks(32, 64, 4, 2),  # dkv
        Blocks(128, 32, 8, 1),  # jvp
        Blocks(128, 32, 8, 1),  # hq
        Blocks(32, 128, 8, 1),  # hk
    ),
}
