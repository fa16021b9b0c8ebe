"""Chunked Triton kernels as compilations: scores that stay in registers, and scores that go through shared memory."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_kernel(q, k, v, out, CHUNK: tl.constexpr, WIDTH: tl.constexpr):
    """Scores as the left operand of the next product, and never turned: they stay in registers."""
    i, d = tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    place = i[:, None] * WIDTH + d[None, :]
    scores = tl.dot(tl.load(q + place), tl.trans(tl.load(k + place)))
    scores = tl.where(i[:, None] >= i[None, :], scores, 0.0)
    tl.store(out + place, tl.dot(scores.to(tl.bfloat16), tl.load(v + place)))


@triton.jit
def turned_kernel(q, k, v, out, CHUNK: tl.constexpr, WIDTH: tl.constexpr):
    """Scores that are transposed before the next product, through shared memory."""
    i, d = tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    place = i[:, None] * WIDTH + d[None, :]
    scores = tl.dot(tl.load(q + place), tl.trans(tl.load(k + place)))
    scores = tl.where(i[:, None] >= i[None, :], scores, 0.0)
    tl.store(out + place, tl.dot(tl.trans(scores.to(tl.bfloat16)), tl.load(v + place)))


@triton.jit
def carried_kernel(q, k, v, out, CHUNK: tl.constexpr, WIDTH: tl.constexpr):
    """Scores that a loop adds to, and rows of features that it adds to; the scores are transposed after it."""
    i, d = tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    place = i[:, None] * WIDTH + d[None, :]
    scores, rows = tl.zeros([CHUNK, CHUNK], tl.float32), tl.zeros([CHUNK, WIDTH], tl.float32)
    for part in range(0, 4):
        tile = tl.load(q + part * CHUNK * WIDTH + place)
        scores += tl.dot(tile, tl.trans(tl.load(k + place)))
        rows += tile
    tl.store(out + place, rows + tl.dot(tl.trans(scores.to(tl.bfloat16)), tl.load(v + place)))


SIGNATURE = {"q": "*bf16", "k": "*bf16", "v": "*bf16", "out": "*fp32", "CHUNK": "constexpr", "WIDTH": "constexpr"}


def compilation(kernel, chunk, width):
    return f"{kernel.__name__} {chunk} {width}", kernel, SIGNATURE, {"CHUNK": chunk, "WIDTH": width}, {"num_warps": 4}


def in_registers(dtype):
    return [compilation(rows_kernel, 64, 32), compilation(rows_kernel, 64, 16)]


def as_wide_as_long(dtype):
    return [compilation(rows_kernel, 64, 64)]


def turned(dtype):
    return [compilation(rows_kernel, 64, 32), compilation(turned_kernel, 64, 32)]


def turned_as_wide_as_long(dtype):
    return [compilation(turned_kernel, 64, 64)]


def of_its_own(dtype, capability=(9, 0)):
    """Of one name everywhere, with features as long as a chunk but on sm_90; and one that is for sm_80 alone."""
    one = compilation(rows_kernel, 64, 32 if capability == (9, 0) else 64)
    return [("rows", *one[1:])] + ([compilation(turned_kernel, 64, 64)] if capability == (8, 0) else [])


def carried(dtype):
    return [compilation(carried_kernel, 64, 64)]


def nothing(dtype):
    return []
