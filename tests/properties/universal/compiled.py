"""A Triton kernel whose tile is a constant, as compilations that fit every GPU, some GPUs, or none."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gemm(a, b, out, n, TILE: tl.constexpr, STEP: tl.constexpr):
    i, d = tl.arange(0, TILE), tl.arange(0, STEP)
    acc = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, n, STEP):
        x = tl.load(a + i[:, None] * n + start + d[None, :])
        y = tl.load(b + i[:, None] * n + start + d[None, :])
        acc += tl.dot(x, tl.trans(y))
    tl.store(out + i[:, None] * TILE + i[None, :], acc)


@triton.jit
def broken(a):
    tl.store(a, tl.nothing_of_that_name)


SIGNATURE = {"a": "*bf16", "b": "*bf16", "out": "*fp32", "n": "i32", "TILE": "constexpr", "STEP": "constexpr"}


def tile(size, step, stages):
    constants = {"TILE": size, "STEP": step}
    return f"tile {size}", gemm, SIGNATURE, constants, {"num_warps": 4, "num_stages": stages}


def fitting(dtype):
    return [tile(64, 64, 2)]


def too_large(dtype):
    return [tile(64, 64, 2), tile(128, 512, 1)]


def too_wide(dtype):
    return [tile(512, 16, 1)]


def uncompilable(dtype):
    return [("broken", broken, {"a": "*fp32"}, {}, {})]


def nothing(dtype):
    return []
