"""Kernels in forms that released packages use: scans of pairs, every atomic, heuristics above an autotuner."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def recur(a_left, b_left, a_right, b_right):
    """h -> a h + b, first the left one."""
    return a_left * a_right, a_right * b_left + b_right


@triton.jit
def recurrence(A, B, H, N, REVERSE: tl.constexpr, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    a = tl.load(A + row * N + n, mask=n < N, other=1.0)
    b = tl.load(B + row * N + n, mask=n < N, other=0.0)
    _, h = tl.associative_scan((a, b), 0, recur, reverse=REVERSE)
    tl.store(H + row * N + n, h.to(H.dtype.element_ty), mask=n < N)


@triton.jit
def every_atomic(X, Z, N, SEM: tl.constexpr, SCOPE: tl.constexpr, BLOCK: tl.constexpr):
    """Z[0]: the sum, Z[1], Z[2]: the extremes, Z[3..5]: and, or, xor, Z[6]: exchanged, Z[7]: compared and swapped."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + n, mask=n < N, other=0)
    at = tl.zeros([BLOCK], tl.int32)
    tl.atomic_add(Z + at, x, mask=n < N, sem=SEM, scope=SCOPE)
    tl.atomic_max(Z + 1 + at, x, mask=n < N, sem=SEM, scope=SCOPE)
    tl.atomic_min(Z + 2 + at, x, mask=n < N, sem=SEM, scope=SCOPE)
    tl.atomic_and(Z + 3 + at, x, mask=n < N, sem=SEM, scope=SCOPE)
    tl.atomic_or(Z + 4 + at, x, mask=n < N, sem=SEM, scope=SCOPE)
    tl.atomic_xor(Z + 5 + at, x, mask=n < N, sem=SEM, scope=SCOPE)
    tl.atomic_xchg(Z + 6, N, sem=SEM, scope=SCOPE)
    tl.atomic_cas(Z + 7, 0, 1 + tl.program_id(0), sem=SEM, scope=SCOPE)


@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64})], key=["N"])
@triton.heuristics({"EVEN": lambda given: given["N"] % given["BLOCK"] == 0})
@triton.jit
def tuned(X, Z, N, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + n) if EVEN else tl.load(X + n, mask=n < N, other=0.0)
    tl.store(Z + n, 2 * x, mask=n < N)


@triton.jit
def selu_of_one(x, alpha):
    """Its value, and how many steps of a loop it took."""
    steps = 0
    if x > 0:
        y = x
    else:
        y = alpha * (tl.exp(x) - 1.0)
        while steps < 3:
            steps += 1
    return y, steps


@triton.jit
def halves_of_two(x, y):
    return x / 2, y / 2


@triton.jit
def mapped(X, Y, STEPS, Z, N, M, alpha, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Y and STEPS of each element alone, Z of two at a time."""
    n, m = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    at, there = n[:, None] * M + m[None, :], (n < N)[:, None] & (m < M)[None, :]
    x = tl.load(X + at, mask=there, other=0.0)
    y, steps = tl.map_elementwise(selu_of_one, x, alpha)
    tl.store(Y + at, y, mask=there)
    tl.store(STEPS + at, steps, mask=there)
    tl.store(Z + at, tl.map_elementwise(halves_of_two, x, pack=2)[0], mask=there)
