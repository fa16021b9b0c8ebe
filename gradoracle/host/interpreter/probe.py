"""A kernel that tests, in a millisecond and without memory, that Triton, numpy and the corrections work together."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def exercise(count: Any, SIZE: tl.constexpr):  # type: ignore[no-untyped-def,valid-type]
    """Loop to a run-time bound, round to bfloat16, multiply, reduce.

    The dot is that of float32 by FFMA: compiling the one of tensor cores takes seconds, and not every kernel has it.
    """
    lane = tl.arange(0, SIZE)
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for i in range(0, count):
        row = (lane * i).to(tl.bfloat16).to(tl.float32)
        total = tl.dot(row[:, None] * row[None, :], row[:, None] + row[None, :], total, input_precision="ieee")
    tl.sum(tl.max(total, 1), 0)
