"""`tl.dot` as a tensor core computes it: exact products of rounded operands, added up in the accumulator's dtype.

Triton's interpreter multiplies the raw 16-bit integers of bfloat16 operands and ignores `input_precision`.

TF32, found by compiling a float32 dot with Triton 3.6.0, 3.7.1, 3.8.0 and 3.9.0 for sm_80, 90, 100 and 120 and
reading the PTX (tests/host/interpreter/test_dot.py repeats it); single products then agreed with an H200 bit for
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

How products are added up, to the bit: accumulation.py. Every product goes onto the accumulator, as in hardware, but
those of the split precisions, whose sum is added to it at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from gradoracle.host.interpreter import launch_hooks
from gradoracle.host.interpreter.accumulation import TensorCore, chained, in_blocks
from gradoracle.host.interpreter.blocks import FLOATS
from gradoracle.host.interpreter.rounding import (
    Float32Array,
    from_fp8,
    to_bf16,
    to_tf32_nearest_away,
    to_tf32_truncated,
)
from gradoracle.host.interpreter.values import BF16, Array, is_widened
from gradoracle.model.formats import OF_TRITON

Handle = Any
_STOCK_DOT = InterpreterBuilder.create_dot
_PARTS = {
    getattr(ir.INPUT_PRECISION, name): count
    for name, count in (("BF16x3", 2), ("BF16x6", 3))
    if hasattr(ir.INPUT_PRECISION, name)
}
_HALF = OF_TRITON["fp16"]
CORES = {BF16: TensorCore(16), "fp16": TensorCore(16, (_HALF.lowest, _HALF.lowest))}
"""How products of 16-bit floats are added, by the name of their type."""
IMPRECISE = 2**30
"""How many products of 8-bit floats are added before a sum in float32, where a kernel says nothing: on sm_90, all."""
_TF32 = TensorCore(8)
_WARP_GROUP = 64
"""Rows from which on sm_90 multiplies 8-bit floats by wgmma. Smaller tiles are cast to float16, for mma.sync."""
_WGMMA_DEPTH = 32
"""Products of 8-bit floats that an instruction adds."""
INPUT_PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
"""What a kernel may ask for."""


def create_dot(self: Any, a: Handle, b: Handle, d: Handle, input_precision: Any, max_num_imprecise_acc: Any) -> Handle:
    """a [.. M K] @ b [.. K N] + d [.. M N]."""
    name = a.dtype.name
    if name in FLOATS and (name == "fp64" or is_widened()):
        return TensorHandle(chained(a.data, b.data, d.data), d.dtype)
    if name == "fp32":
        return TensorHandle(float32_dot(a.data, b.data, d.data, input_precision), d.dtype)
    if name in CORES:
        core = CORES[name]
        if d.data.dtype == np.float16:
            core = replace(core, kept=_HALF.bits - 1, is_nearest=True, lowest=_HALF.lowest, overflow=65520.0)
        return TensorHandle(in_blocks(a.data, b.data, d.data, core), d.dtype)
    if a.dtype.is_fp8() and b.dtype.is_fp8():
        return TensorHandle(_fp8_dot(a, b, d.data, max_num_imprecise_acc), d.dtype)
    return _STOCK_DOT(self, a, b, d, input_precision, max_num_imprecise_acc)  # integers: exact in any order


def float32_dot(left: Float32Array, right: Float32Array, onto: Float32Array, input_precision: Any) -> Array:
    """[.. M K] @ [.. K N] + [.. M N] in float32, with operands as `input_precision` reads them."""
    if input_precision == ir.INPUT_PRECISION.IEEE or launch_hooks.ieee_dots:
        return chained(left, right, onto)
    if input_precision == ir.INPUT_PRECISION.TF32:
        return in_blocks(to_tf32_truncated(left), to_tf32_truncated(right), onto, _TF32)
    if input_precision in _PARTS:
        count = _PARTS[input_precision]
        a, b = _bf16_parts(left, count), _bf16_parts(right, count)
        pairs = [(1, 0), (0, 1)] if count == 2 else [(1, 1), (2, 0), (0, 2), (1, 0), (0, 1)]
        return _split_dot([(a[i], b[j]) for i, j in [*pairs, (0, 0)]], onto, CORES[BF16])
    if input_precision != ir.INPUT_PRECISION.TF32x3:
        raise NotImplementedError(
            f"tl.dot on float32 with input_precision {input_precision} was asked for; the interpreter supports "
            f"{', '.join(INPUT_PRECISIONS)}"
        )
    big_left, big_right = to_tf32_nearest_away(left), to_tf32_nearest_away(right)
    with np.errstate(invalid="ignore"):
        small_left, small_right = to_tf32_truncated(left - big_left), to_tf32_truncated(right - big_right)
    return _split_dot([(small_left, big_right), (big_left, small_right), (big_left, big_right)], onto, _TF32)


def _split_dot(parts: list[tuple[Float32Array, Float32Array]], onto: Float32Array, core: TensorCore) -> Array:
    """The sum of products of parts, the largest last, where a NaN before the last is 0; added to ``onto``."""
    total = np.zeros(1, np.float32).reshape(1, 1)
    for left, right in parts[:-1]:
        total = in_blocks(left, right, total, core)
    total[np.isnan(total)] = 0
    return in_blocks(*parts[-1], total, core) + onto


def _fp8_dot(a: Handle, b: Handle, onto: Array, most: Any) -> Array:
    """Of 8-bit floats: sums of ``most`` products at least are added in float32.

    Where fewer than the 32 products of an instruction are asked for, Triton (AccelerateMatmul.cpp) takes mma.sync.
    """
    left, right = (from_fp8(h.data, h.dtype.name) if h.data.dtype == np.uint8 else h.data for h in (a, b))
    if is_widened():
        return chained(left.astype(np.float64), right.astype(np.float64), onto)
    if left.shape[-2] < _WARP_GROUP or int(most) < _WGMMA_DEPTH:
        # a register has four neighbours along k; of each, two go into either instruction
        k = np.arange(left.shape[-1])
        order = np.lexsort((k, k % 4 // 2, k // 32))
        return in_blocks(left[..., order], right[..., order, :], onto, CORES["fp16"])
    own, other = OF_TRITON[a.dtype.name], OF_TRITON[b.dtype.name]
    core = TensorCore(_WGMMA_DEPTH, (own.lowest, other.lowest), fraction=own.aligned, kept=own.aligned)
    depth = left.shape[-1]
    if int(most) > depth:
        return in_blocks(left, right, onto, core)
    step = -(-int(most) // core.block) * core.block
    total = onto.astype(np.float32)
    zero = np.zeros((1, 1), np.float32)
    for start in range(0, depth, step):
        part = slice(start, start + step)
        total = total + in_blocks(left[..., part], right[..., part, :], zero, core)
    return total.astype(onto.dtype)


def _bf16_parts(values: Float32Array, count: int) -> list[Float32Array]:
    """The nearest bfloat16, that of what is left, and so on, each held in float32."""
    parts = []
    for _ in range(count):
        parts.append(to_bf16(values))
        values = values - parts[-1]
    return parts


METHODS: dict[str, Callable[..., Any]] = {"create_dot": create_dot}
