"""Blocks of every pass by capability, kind of dots and width; written by benchmarks/tuning.py."""

from __future__ import annotations

from ..blocks import Blocks

PARTS = ("forward", "z", "dq", "dk, dv", "r", "jvp", "z'", "hq", "hk, hv")

TUNED: dict[tuple[tuple[int, int], str, int], tuple[Blocks, ...]] = {
    ((8, 0), "16 bit", 64): (
        Blocks(64, 64, 4, 3),  # forward
        Blocks(64, 64, 4, 3),  # z
        Blocks(64, 32, 4, 3),  # dq
        Blocks(64, 64, 4, 3),  # dk, dv
        Blocks(128, 64, 8, 3),  # r
        Blocks(64, 64, 4, 3),  # jvp
        Blocks(64, 64, 4, 2),  # z'
        Blocks(64, 32, 4, 3),  # hq
        Blocks(64, 64, 4, 2),  # hk, hv
    ),
    ((8, 0), "16 bit", 128): (
        Blocks(64, 64, 4, 3),  # forward
        Blocks(128, 32, 4, 3),  # z
        Blocks(64, 32, 4, 3),  # dq
        Blocks(32, 64, 4, 3),  # dk, dv
        Blocks(64, 64, 4, 2),  # r
        Blocks(32, 32, 8, 1),  # jvp
        Blocks(64, 32, 4, 2),  # z'
        Blocks(32, 32, 8, 1),  # hq
        Blocks(32, 32, 8, 1),  # hk, hv
    ),
    ((8, 0), "ieee", 64): (
        Blocks(16, 64, 4, 1),  # forward
        Blocks(32, 32, 4, 1),  # z
        Blocks(32, 32, 4, 1),  # dq
        Blocks(64, 16, 4, 1),  # dk, dv
        Blocks(16, 16, 4, 1),  # r
        Blocks(32, 16, 4, 1),  # jvp
        Blocks(32, 32, 8, 1),  # z'
        Blocks(32, 32, 4, 1),  # hq
        Blocks(32, 32, 4, 1),  # hk, hv
    ),
    ((8, 0), "ieee", 128): (
        Blocks(32, 32, 8, 1),  # forward
        Blocks(32, 32, 8, 1),  # z
        Blocks(32, 32, 8, 1),  # dq
        Blocks(32, 32, 8, 1),  # dk, dv
        Blocks(32, 32, 8, 1),  # r
        Blocks(32, 32, 8, 1),  # jvp
        Blocks(16, 32, 4, 1),  # z'
        Blocks(16, 16, 4, 1),  # hq
        Blocks(16, 16, 4, 1),  # hk, hv
    ),
    ((8, 0), "split", 64): (
        Blocks(128, 16, 8, 1),  # forward
        Blocks(64, 32, 4, 1),  # z
        Blocks(32, 32, 4, 1),  # dq
        Blocks(16, 64, 4, 1),  # dk, dv
        Blocks(16, 32, 4, 1),  # r
        Blocks(16, 16, 4, 1),  # jvp
        Blocks(16, 32, 4, 1),  # z'
        Blocks(16, 32, 4, 1),  # hq
        Blocks(16, 32, 4, 1),  # hk, hv
    ),
    ((8, 0), "split", 128): (
        Blocks(16, 32, 4, 1),  # forward
        Blocks(16, 32, 4, 1),  # z
        Blocks(16, 16, 4, 1),  # dq
        Blocks(16, 16, 4, 1),  # dk, dv
        Blocks(16, 32, 4, 1),  # r
        Blocks(16, 16, 4, 1),  # jvp
        Blocks(16, 32, 4, 1),  # z'
        Blocks(16, 16, 4, 1),  # hq
        Blocks(16, 16, 4, 1),  # hk, hv
    ),
    ((9, 0), "16 bit", 64): (
        Blocks(64, 64, 4, 3),  # forward
        Blocks(128, 64, 8, 3),  # z
        Blocks(64, 64, 4, 3),  # dq
        Blocks(64, 64, 4, 3),  # dk, dv
        Blocks(128, 64, 8, 3),  # r
        Blocks(64, 64, 4, 3),  # jvp
        Blocks(128, 128, 8, 2),  # z'
        Blocks(128, 64, 8, 3),  # hq
        Blocks(64, 64, 4, 2),  # hk, hv
    ),
    ((9, 0), "16 bit", 128): (
        Blocks(128, 64, 4, 2),  # forward
        Blocks(128, 64, 8, 3),  # z
        Blocks(64, 32, 4, 3),  # dq
        Blocks(64, 128, 8, 3),  # dk, dv
        Blocks(128, 64, 8, 3),  # r
        Blocks(128, 64, 8, 2),  # jvp
        Blocks(128, 64, 8, 2),  # z'
        Blocks(128, 64, 8, 2),  # hq
        Blocks(32, 128, 8, 3),  # hk, hv
    ),
    ((9, 0), "ieee", 64): (
        Blocks(16, 64, 4, 1),  # forward
        Blocks(32, 32, 4, 1),  # z
        Blocks(32, 32, 4, 1),  # dq
        Blocks(32, 32, 4, 1),  # dk, dv
        Blocks(16, 16, 4, 1),  # r
        Blocks(32, 16, 4, 1),  # jvp
        Blocks(16, 16, 4, 1),  # z'
        Blocks(32, 32, 4, 1),  # hq
        Blocks(32, 32, 4, 1),  # hk, hv
    ),
    ((9, 0), "ieee", 128): (
        Blocks(32, 32, 4, 1),  # forward
        Blocks(16, 32, 4, 1),  # z
        Blocks(32, 32, 4, 1),  # dq
        Blocks(32, 32, 4, 1),  # dk, dv
        Blocks(32, 32, 8, 1),  # r
        Blocks(16, 16, 4, 1),  # jvp
        Blocks(16, 32, 4, 1),  # z'
        Blocks(16, 32, 4, 1),  # hq
        Blocks(16, 16, 4, 1),  # hk, hv
    ),
    ((9, 0), "split", 64): (
        Blocks(128, 64, 8, 3),  # forward
        Blocks(128, 64, 8, 2),  # z
        Blocks(128, 32, 8, 3),  # dq
        Blocks(64, 128, 8, 2),  # dk, dv
        Blocks(128, 64, 8, 1),  # r
        Blocks(128, 64, 8, 1),  # jvp
        Blocks(128, 64, 8, 1),  # z'
        Blocks(128, 64, 8, 1),  # hq
        Blocks(64, 128, 8, 1),  # hk, hv
    ),
    ((9, 0), "split", 128): (
        Blocks(128, 64, 8, 1),  # forward
        Blocks(128, 32, 8, 1),  # z
        Blocks(128, 32, 8, 1),  # dq
        Blocks(32, 128, 8, 1),  # dk, dv
        Blocks(128, 32, 8, 1),  # r
        Blocks(128, 32, 8, 1),  # jvp
        Blocks(64, 32, 4, 1),  # z'
        Blocks(64, 32, 4, 1),  # hq
        Blocks(32, 64, 4, 1),  # hk, hv
    ),
}
