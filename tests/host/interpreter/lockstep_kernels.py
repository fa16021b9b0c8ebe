"""Kernels whose programs run in step, or part, or cannot: what tests of lockstep compare with programs run alone."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def shapes(X, Z, M, N, OP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """One program a row block of X [.., M, N]; Z has room for ROWS * COLUMNS * 2 numbers of each."""
    own = tl.program_id(0)
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    there = (rows[:, None] < M) & (columns[None, :] < N)
    x = tl.load(X + own * M * N + rows[:, None] * N + columns[None, :], mask=there, other=-1.0)
    z = x
    if OP == "sum rows":
        z = x * tl.sum(x, 0)[None, :]
    elif OP == "sum columns":
        z = x * tl.sum(x, 1)[:, None]
    elif OP == "sum all":
        z = x * tl.sum(x)
    elif OP == "kept":
        z = x * tl.sum(x, 1, keep_dims=True) + tl.max(x, 0, keep_dims=True) + tl.min(x, keep_dims=True)
    elif OP == "largest":
        z = x - tl.max(x, 1)[:, None] + tl.argmax(x, 1)[:, None] - tl.argmin(x, 0)[None, :]
    elif OP == "scan":
        z = tl.cumsum(x, 0) + tl.cumsum(x, 1, reverse=True) + tl.cumprod(x, 1)
    elif OP == "transposed":
        z = tl.trans(tl.trans(x) * 2 + x.T)
    elif OP == "reshaped":
        z = tl.reshape(tl.reshape(x, (ROWS * COLUMNS,)) * tl.arange(0, ROWS * COLUMNS), (ROWS, COLUMNS))
    elif OP == "expanded":
        z = tl.sum(tl.expand_dims(x, 1) * tl.arange(0, 2)[None, :, None], 1) + tl.expand_dims(tl.sum(x, 0), 0)
    elif OP == "joined":
        first, second = tl.split(tl.join(x, x * own))
        z = first + 3 * second
    elif OP == "dot":
        z = tl.dot(x, tl.trans(x), input_precision="ieee") + tl.dot(x, x, input_precision="tf32")
    elif OP == "half dot":
        z = tl.dot(x.to(tl.float16), x.to(tl.float16)) + tl.dot(x.to(tl.bfloat16), x.to(tl.bfloat16))
    elif OP == "chosen":
        z = tl.where(rows[:, None] < own, x, tl.full((ROWS, COLUMNS), 0.5, tl.float32) * own)
    elif OP == "scalars":
        z = x * tl.load(X + own).to(tl.float32) + (own // 3 + own % 3) * tl.sqrt(own * 1.0)
    elif OP == "narrow":
        z = (x.to(tl.bfloat16) * x.to(tl.bfloat16)).to(tl.float32) + (x * 100).to(tl.int32) + x.to(tl.float16)
    tl.store(Z + own * ROWS * COLUMNS + rows[:, None] * COLUMNS + columns[None, :], z)


@triton.jit
def rests(X, Z, N):
    """Program p adds up X over p % N + 1 steps: programs part at the bound."""
    own = tl.program_id(0)
    total = 0.0
    for i in range(0, own % N + 1):
        total += tl.load(X + i)
    tl.store(Z + own, total)


@triton.jit
def late(X, Z, FIRST, SIZE: tl.constexpr):
    """Programs from FIRST on make a block of SIZE numbers."""
    own = tl.program_id(0)
    total = tl.load(X + own)
    if own >= FIRST:
        total += tl.sum(tl.full((SIZE,), 1.0, tl.float32) * total, 0)
    tl.store(Z + own, total)


@triton.jit
def branches(X, Z, SIZE: tl.constexpr):
    """Z is doubled, and then programs part by what they find in X."""
    own = tl.program_id(0)
    at = own * SIZE + tl.arange(0, SIZE)
    tl.store(Z + at, tl.load(Z + at) * 2)
    if tl.max(tl.load(X + at), 0) > 0:
        tl.store(Z + at, tl.load(Z + at) + 1)
    value = tl.sum(tl.load(X + at), 0)
    while value > 1:
        value = value / 2
        tl.store(Z + at, tl.load(Z + at) + 10)


@triton.jit
def atomics(X, Z, SIZE: tl.constexpr):
    """Z is doubled, and then every program adds to its first element."""
    own = tl.program_id(0)
    at = own * SIZE + tl.arange(0, SIZE)
    tl.store(Z + at, tl.load(Z + at) * 2)
    tl.atomic_add(Z, tl.sum(tl.load(X + at), 0))


@triton.jit
def one_place(Z, SIZE: tl.constexpr):
    """All programs store to the same elements."""
    at = tl.arange(0, SIZE)
    tl.store(Z + at, at + tl.program_id(0), mask=at < SIZE - 1)
    tl.store(Z + SIZE, tl.program_id(0))


@triton.jit
def many_axes(X, Z):
    """Blocks of six axes."""
    own = tl.program_id(0)
    x = tl.reshape(tl.load(X + own * 64 + tl.arange(0, 64)), (2, 2, 2, 2, 2, 2))
    tl.store(Z + own * 64 + tl.arange(0, 64), tl.reshape(tl.permute(x, (5, 4, 3, 2, 1, 0)), (64,)))


@triton.jit
def lost_update(Z):
    """Every program adds 1 to one number without an atomic."""
    tl.store(Z, tl.load(Z) + 1)


@triton.jit
def grid(Z, X_SIZE: tl.constexpr, Y_SIZE: tl.constexpr):
    """Where each program of a three-dimensional grid is."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tl.store(Z + (z * Y_SIZE + y) * X_SIZE + x, x + 10 * y + 100 * z + 1000 * tl.num_programs(1))


@triton.jit
def raising(X, Z):
    """Adds blocks that do not fit each other, after a store."""
    own = tl.program_id(0)
    tl.store(Z + own, 1.0)
    tl.store(Z + own, tl.sum(tl.arange(0, 2) + tl.arange(0, 4), 0))
