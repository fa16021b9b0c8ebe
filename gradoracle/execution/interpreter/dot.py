"""`tl.dot` as a tensor core computes it: exact products of rounded operands, added up in the accumulator's dtype.

Triton's interpreter multiplies the raw 16-bit integers of bfloat16 operands and ignores `input_precision`.

TF32, found by compiling a float32 dot with Triton 3.6.0, 3.7.1, 3.8.0 and 3.9.0 for sm_80, 90, 100 and 120 and
reading the PTX (tests/execution/interpreter/test_dot.py repeats it); single products then agreed with an H200 bit for
bit:

- `input_precision="tf32"` (the default): the registers loaded from memory go straight into
  `mma.sync...tf32`, `wgmma...tf32` or `tcgen05.mma.kind::tf32`, with no `cvt.rna.tf32` before them, down to 1x1
  blocks.  The tensor core ignores the low 13 bits, so operands are **truncated** toward zero.
- `"tf32x3"`: `big = cvt.rna.tf32(x)` (nearest, ties away), `small = x - big` in float32, left raw and so truncated;
  three products in the order small*big, big*small, big*big, where a NaN in the sum of the first two is replaced
  by 0 before the third (infinities), and the accumulator is added last.
- `"bf16x3"`, `"bf16x6"`: operands are split into 2 or 3 bfloat16 parts, each the nearest to what the ones before
  leave; 3 or 6 products of parts, smallest first, where a NaN before the last is replaced by 0; the accumulator is
  added last.
- `"ieee"`: `fma.rn.f32`, no rounding of operands.

The order of summation is BLAS's, not the tensor core's, and sums round to nearest where a tensor core truncates: on
an H200 the three terms of one tf32x3 product differed by up to 1 ulp from the sum here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from gradoracle.execution.interpreter import launch_hooks
from gradoracle.execution.interpreter.blocks import FLOATS
from gradoracle.execution.interpreter.rounding import (
    Float32Array,
    to_bf16,
    to_tf32_nearest_away,
    to_tf32_truncated,
)
from gradoracle.execution.interpreter.values import BF16, Array, is_widened

Handle = Any
_STOCK_DOT = InterpreterBuilder.create_dot
_PARTS = {
    getattr(ir.INPUT_PRECISION, name): count
    for name, count in (("BF16x3", 2), ("BF16x6", 3))
    if hasattr(ir.INPUT_PRECISION, name)
}
INPUT_PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
"""What a kernel may ask for."""


def create_dot(self: Any, a: Handle, b: Handle, d: Handle, input_precision: Any, max_num_imprecise_acc: Any) -> Handle:
    """a [.. M K] @ b [.. K N] + d [.. M N]; 16-bit operands are multiplied exactly and added up in float32."""
    name = a.dtype.name
    if name == "fp32" and not is_widened():
        product = float32_dot(a.data, b.data, input_precision)
    elif name == "fp64" or name == BF16 or (name in FLOATS and is_widened()):
        product = np.matmul(a.data, b.data)
    elif name == "fp16":
        product = np.matmul(a.data.astype(np.float32), b.data.astype(np.float32))
    else:
        return _STOCK_DOT(self, a, b, d, input_precision, max_num_imprecise_acc)
    accumulator = d.data
    if accumulator.dtype != np.float16:
        product += accumulator
        return TensorHandle(product, d.dtype)
    return TensorHandle((product + accumulator).astype(np.float16), d.dtype)


def float32_dot(left: Float32Array, right: Float32Array, input_precision: Any) -> Array:
    """[.. M K] @ [.. K N] in float32, with operands as `input_precision` reads them."""
    if input_precision == ir.INPUT_PRECISION.IEEE or launch_hooks.ieee_dots:
        return np.matmul(left, right)
    if input_precision == ir.INPUT_PRECISION.TF32:
        return np.matmul(to_tf32_truncated(left), to_tf32_truncated(right))
    if input_precision in _PARTS:
        return _bf16_dot(left, right, _PARTS[input_precision])
    if input_precision != ir.INPUT_PRECISION.TF32x3:
        raise NotImplementedError(
            f"tl.dot on float32 with input_precision {input_precision} was asked for; the interpreter supports "
            f"{', '.join(INPUT_PRECISIONS)}"
        )
    big_left, big_right = to_tf32_nearest_away(left), to_tf32_nearest_away(right)
    small_left, small_right = to_tf32_truncated(left - big_left), to_tf32_truncated(right - big_right)
    corrections = np.matmul(small_left, big_right)
    corrections += np.matmul(big_left, small_right)
    corrections[np.isnan(corrections)] = 0
    corrections += np.matmul(big_left, big_right)
    return corrections


def _bf16_dot(left: Float32Array, right: Float32Array, count: int) -> Array:
    """The sum of the products of ``count`` bfloat16 parts of each operand, without the smallest ones."""
    a, b = _bf16_parts(left, count), _bf16_parts(right, count)
    pairs = [(1, 0), (0, 1)] if count == 2 else [(1, 1), (2, 0), (0, 2), (1, 0), (0, 1)]
    total = np.zeros((), np.float32)
    for i, j in pairs:
        total = total + np.matmul(a[i], b[j])
    total[np.isnan(total)] = 0
    total += np.matmul(a[0], b[0])
    return total


def _bf16_parts(values: Float32Array, count: int) -> list[Float32Array]:
    """The nearest bfloat16, that of what is left, and so on, each held in float32."""
    parts = []
    for _ in range(count):
        parts.append(to_bf16(values))
        values = values - parts[-1]
    return parts


METHODS: dict[str, Callable[..., Any]] = {"create_dot": create_dot}
