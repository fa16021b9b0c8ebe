"""Reductions and scans: a 16-bit sum rounds every addition, as `tl.sum` compiled for a GPU does.

Triton's interpreter adds up the raw integers of bfloat16, and adds float16 in float32 with one rounding at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from triton.runtime.interpreter import ReduceOps, ScanOps

from .rounding import to_bf16
from .values import BF16

Scan = Callable[..., Any]
_STOCK_MIN_MAX = ReduceOps.min_max


def sum_reduce(self: Any, input: Any) -> Any:
    """Sum along `self.axis`; 16-bit dtypes as a tree of halves, whose order a GPU chooses by layout."""
    data, name = input.handle.data, input.dtype.name
    if name not in (BF16, "fp16"):
        return self.to_tensor(np.add.reduce(data, axis=self.axis, keepdims=self.keep_dims), input.dtype)
    axis = self.axis
    shape = data.shape
    if axis is None:
        data, axis = data.reshape(-1), 0
    data = np.moveaxis(data, axis, 0)
    while len(data) > 1:
        half = len(data) // 2
        total = data[:half] + data[half : 2 * half]
        total = to_bf16(total) if name == BF16 else total
        data = np.concatenate([total, data[2 * half :]]) if len(data) % 2 else total
    result = data[0]
    if self.keep_dims:
        result = result.reshape((1,) * len(shape)) if self.axis is None else np.expand_dims(result, axis)
    return self.to_tensor(result, input.dtype)


def min_max(self: Any, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
    """Triton's, with nanmax and nanmin in their fast form: fmax and fmin, which do not copy and do not warn."""
    fast = {np.nanmax: np.fmax, np.nanmin: np.fmin}.get(val_reduce_op)
    if fast is None or idx_reduce_op is not None:
        return _STOCK_MIN_MAX(self, input, val_reduce_op, idx_reduce_op)
    input = input[0] if isinstance(input, tuple) else input
    return self.to_tensor(fast.reduce(input.handle.data, axis=self.axis, keepdims=self.keep_dims), input.dtype)


def _scan(op: Callable[..., Any], stock: Scan) -> Scan:
    def scan(self: Any, input: Any) -> Any:
        if input.dtype.name != BF16:
            return stock(self, input)
        data = np.moveaxis(input.handle.data, self.axis, 0)
        result = data.copy()
        for i in range(1, len(data)):
            result[i] = to_bf16(op(result[i - 1 : i], data[i : i + 1]))[0]
        return [self.to_tensor(np.moveaxis(result, 0, self.axis), dtype=input.dtype)]

    return scan


REDUCE_METHODS: dict[str, Callable[..., Any]] = {"sum": sum_reduce, "min_max": min_max}
SCAN_METHODS: dict[str, Callable[..., Any]] = {
    "cumsum": _scan(np.add, ScanOps.cumsum),
    "cumprod": _scan(np.multiply, ScanOps.cumprod),
}
