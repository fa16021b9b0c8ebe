"""Kernels that touch memory as they should and as they should not: what the record of accesses is tried on."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copied(X, Y, N, READ_BEYOND: tl.constexpr, WRITTEN_BEYOND: tl.constexpr, BLOCK: tl.constexpr):
    """Y = X, one block of N elements a program."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < N + READ_BEYOND, other=0.0)
    tl.store(Y + at, x, mask=at < N + WRITTEN_BEYOND)


@triton.jit
def shifted(X, Y, BY, BLOCK: tl.constexpr):
    """Y = X of one block, with no mask, BY elements further on."""
    at = tl.arange(0, BLOCK)
    tl.store(Y + BY + at, tl.load(X + at))


@triton.jit
def gathered(X, Y, ROWS, COLUMNS, row_stride, column_stride, BLOCK: tl.constexpr):
    """One row of X [ROWS COLUMNS] by its strides, a program."""
    at = tl.arange(0, BLOCK)
    x = tl.load(X + tl.program_id(0) * row_stride + at * column_stride, mask=at < COLUMNS)
    tl.store(Y + tl.program_id(0) * COLUMNS + at, x, mask=at < COLUMNS)


@triton.jit
def put(pointer, value, there):
    tl.store(pointer, value, mask=there)


@triton.jit
def summed(X, Y, N, HOW: tl.constexpr, BLOCK: tl.constexpr):
    """Adds the blocks of X [programs, N] up into Y [N]: atomically, or as kernels with a race do."""
    at = tl.arange(0, BLOCK)
    x = tl.load(X + tl.program_id(0) * N + at, mask=at < N)
    if HOW == "atomic":
        tl.atomic_add(Y + at, x, mask=at < N)
    elif HOW == "stored":
        put(Y + at, x, at < N)
    elif HOW == "read and written":
        put(Y + at, x + tl.load(Y + at, mask=at < N), at < N)
    elif HOW == "mixed":
        if tl.program_id(0) == 0:
            put(Y + at, x, at < N)
        else:
            tl.atomic_add(Y + at, x, mask=at < N)


@triton.jit
def locked(X, Y, Lock, N, RELEASED: tl.constexpr, BLOCK: tl.constexpr):
    """Y += X [programs, N], one program at a time under a lock."""
    at = tl.arange(0, BLOCK)
    x = tl.load(X + tl.program_id(0) * N + at, mask=at < N)
    if RELEASED:
        while tl.atomic_cas(Lock, 0, 1) == 1:
            pass
    y = tl.load(Y + at, mask=at < N)
    tl.debug_barrier()
    tl.store(Y + at, x + y, mask=at < N)
    tl.debug_barrier()
    if RELEASED:
        tl.atomic_xchg(Lock, 0)


@triton.jit
def neighbours(X, Y, Z, ORDER: tl.constexpr, BLOCK: tl.constexpr):
    """Z = Y of the neighbour within a block, after Y = X."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at)
    if ORDER == "in place":
        tl.store(X + at, x * 2)
    else:
        tl.store(Y + at, x)
        if ORDER == "barrier":
            tl.debug_barrier()
        tl.store(Z + at, tl.load(Y + (at ^ 1)))


@triton.jit
def in_place(X, HOW: tl.constexpr, BLOCK: tl.constexpr):
    """Each block of X made anew from itself."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if HOW == "first":
        first = tl.load(X + tl.program_id(0) * BLOCK)
        tl.store(X + at, tl.load(X + at) / first)
    elif HOW == "neighbours":
        other = tl.load(X + (at ^ 1))
        tl.store(X + at, tl.load(X + at) + other)
    elif HOW == "sum":
        tl.store(X + tl.program_id(0) * BLOCK, tl.sum(tl.load(X + at)))
    elif HOW == "softmax":
        x = tl.load(X + at)
        e = tl.exp(x - tl.max(x))
        tl.store(X + at, e / tl.sum(e))
    elif HOW == "flipped":
        tl.store(X + at, tl.flip(tl.load(X + at), 0))
    else:
        x = tl.load(X + (at ^ 1))
        if HOW == "permuted, with a barrier":
            tl.debug_barrier()
        elif HOW == "less their sum":
            x -= tl.sum(x)
        tl.store(X + at, x)


@triton.jit
def cleared(X, Y, ORDER: tl.constexpr, BLOCK: tl.constexpr):
    """Y = X, after zeros."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at)
    tl.store(Y + at, tl.zeros([BLOCK], tl.float32))
    if ORDER == "barrier":
        tl.debug_barrier()
    if ORDER == "atomic":
        tl.atomic_add(Y + at, x)
    else:
        tl.store(Y + at, x)


@triton.jit
def reading_what_others_write(X, Y, BLOCK: tl.constexpr):
    """Y [2 BLOCK]: each program stores its block and loads the other's."""
    at = tl.arange(0, BLOCK)
    own = tl.program_id(0)
    tl.store(Y + own * BLOCK + at, tl.load(X + own * BLOCK + at))
    tl.store(X + (2 + own) * BLOCK + at, tl.load(Y + (1 - own) * BLOCK + at))


@triton.jit
def parting(X, Y, BLOCK: tl.constexpr):
    """Programs take as many steps as their number says, each loading what it stores only in the step before."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at)
    for _ in range(tl.program_id(0)):
        x = x * 2
    tl.store(Y + at, x)


@triton.jit
def chosen(X, Y, Z, N, BLOCK: tl.constexpr):
    """Z takes X at even and Y at odd places, through one pointer."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Z + at, tl.load(tl.where(at % 2 == 0, X + at, Y + at), mask=at < N), mask=at < N)


@triton.jit
def halves(X, Y, N, BLOCK: tl.constexpr):
    """X, a tuple of two tensors, is added up."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X[0] + at, mask=at < N) + tl.load(X[1] + at, mask=at <= N), mask=at < N)


@triton.jit
def loaded(X, at, n):
    """A helper that several kernels share."""
    return tl.load(X + at, mask=at < n, other=0.0)


@triton.jit
def twice_copied(X, Y, n, first: tl.constexpr, second: tl.constexpr, BLOCK: tl.constexpr):
    """Load by a helper at two places, each up to its own bound, and store the sum."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    one = loaded(X, at, n + first)
    other = loaded(X, at, n + second)
    tl.store(Y + at, one + other, mask=at < n)


@triton.jit
def biased(X, B, Y, N, HAS_BIAS, HOW: tl.constexpr, BLOCK: tl.constexpr):
    """Y = 2 X + B of one row a program, without B where HAS_BIAS is 0: B is then a placeholder."""
    at = tl.arange(0, BLOCK)
    x = tl.load(X + tl.program_id(0) * N + at, mask=at < N)
    b = tl.load(B + at, mask=(at < N) & (HAS_BIAS != 0 or HOW != "masked"), other=0.0)
    if HOW == "discarded":
        b = tl.where(HAS_BIAS != 0, b, 0.0)
    elif HOW == "times 0":
        b = b * HAS_BIAS
    elif HOW == "compared":
        b = tl.where(b > 0, 1.0, 0.0)  # unwritten NaN is not larger
    elif HOW == "smallest":
        b = tl.minimum(b, 0.0)  # unwritten NaN is passed over
    tl.store(Y + tl.program_id(0) * N + at, 2 * x + b, mask=at < N)


@triton.jit
def copied_by_descriptors(x, z, row, B: tl.constexpr):
    z.store([row, 0], x.load([tl.program_id(0) * B, 0]))
