"""Reductions and scans: a 16-bit sum rounds every addition, as `tl.sum` compiled for a GPU does.

Triton's interpreter adds up the raw integers of bfloat16, and adds float16 in float32 with one rounding at the end.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import ReduceOps, ScanOps, TensorHandle

from gradoracle.execution.interpreter import intervention, lockstep
from gradoracle.execution.interpreter.rounding import nearest, to_bf16
from gradoracle.execution.interpreter.values import BF16, held_as

Scan = Callable[..., Any]
Rounded = Callable[[Any], Any]
_FEW_INSIDE, _MANY_OUTSIDE = 16, 64
_STOCK_MIN_MAX = ReduceOps.min_max
_STOCK_REDUCE = ReduceOps.apply_impl
_STOCK_SCAN = ScanOps.apply_impl


def sum_reduce(self: Any, input: Any) -> Any:
    """Sum along `self.axis`; 16-bit dtypes as a tree of halves, whose order a GPU chooses by layout."""
    data, name = input.handle.data, input.dtype.name

    def found(data: Any, rounded: Rounded) -> Any:
        if name in (BF16, "fp16"):
            return _tree(data, self.axis, self.keep_dims, rounded)
        return _reduced(np.add, data, self.axis, self.keep_dims)

    total = found(data, to_bf16 if name == BF16 else lambda values: values)
    if intervention.current is not None and data.dtype == np.float64:
        held = data.astype(np.float32) if name == "fp32" else data
        total = intervention.current.value(
            total, lambda: found(held, lambda values: nearest(values, name)).astype(np.float64)
        )
    return self.to_tensor(total, input.dtype)


def _tree(data: Any, along: int | None, keep_dims: bool, rounded: Rounded) -> Any:
    """A sum as a tree of halves, each addition rounded."""
    axis, shape = along, data.shape
    if axis is None:
        data, axis = data.reshape(-1), 0
    data = np.moveaxis(data, axis, 0)
    while len(data) > 1:
        half = len(data) // 2
        total = data[:half] + data[half : 2 * half]
        total = rounded(total)
        data = np.concatenate([total, data[2 * half :]]) if len(data) % 2 else total
    result = data[0]
    if keep_dims:
        result = result.reshape((1,) * len(shape)) if along is None else np.expand_dims(result, axis)
    return result


def min_max(self: Any, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
    """Triton's, with fmax and fmin in place of nanmax and nanmin: no copy and no warning."""
    fast = {np.nanmax: np.fmax, np.nanmin: np.fmin}.get(val_reduce_op)
    if fast is None or idx_reduce_op is not None:
        return _STOCK_MIN_MAX(self, input, val_reduce_op, idx_reduce_op)
    input = input[0] if isinstance(input, tuple) else input
    return self.to_tensor(_reduced(fast, input.handle.data, self.axis, self.keep_dims), input.dtype)


def _reduced(op: np.ufunc, data: Any, axis: int | None, keep_dims: bool) -> Any:
    """``op.reduce``, in the same order; slice by slice if numpy would take many steps of few elements each."""
    if axis is not None and 0 < axis < data.ndim - 1:
        shape = data.shape
        if math.prod(shape[axis + 1 :]) <= _FEW_INSIDE and math.prod(shape[:axis]) >= _MANY_OUTSIDE > shape[axis] > 1:
            slices = np.moveaxis(data, axis, 0)
            found = op(slices[0], slices[1])
            for each in slices[2:]:
                op(found, each, out=found)
            return np.expand_dims(found, axis) if keep_dims else found
    return op.reduce(data, axis=axis, keepdims=keep_dims)


def _scan(op: Callable[..., Any], stock: Scan) -> Scan:
    def scan(self: Any, input: Any) -> Any:
        if intervention.current is not None:
            return _offered(stock(self, input))
        if input.dtype.name != BF16:
            return stock(self, input)
        data = np.moveaxis(input.handle.data, self.axis, 0)
        result = data.copy()
        for i in range(1, len(data)):
            result[i] = to_bf16(op(result[i - 1 : i], data[i : i + 1]))[0]
        return [self.to_tensor(np.moveaxis(result, 0, self.axis), dtype=input.dtype)]

    return scan


def _offered(scanned: Any) -> Any:
    """The results of a scan in float64, or what the current intervention makes of them."""
    for each in scanned:
        data, name = each.handle.data, each.dtype.scalar.name
        each.handle.data = _chosen(data, name)
    return scanned


def _chosen(data: Any, name: str) -> Any:
    assert intervention.current is not None
    return intervention.current.value(data, lambda: nearest(data, name))


class _OfPrograms:
    """A tensor of [programs, *shape] for one of Triton's reductions or scans."""

    def __init__(self, data: Any, dtype: Any) -> None:
        self.handle, self.dtype = TensorHandle(data, dtype), dtype


def _in_step(stock: Callable[..., Any], combinations: frozenset[str]) -> Callable[..., Any]:
    """A reduction or scan that keeps the axis of programs; other combinations than those named run one by one."""

    def apply_impl(self: Any, input: Any) -> Any:
        if not any(lockstep.differs(arg.handle.data) for arg in input):
            return stock(self, input)
        if getattr(self.combine_fn, "__name__", "") not in combinations:
            raise lockstep.OneByOne
        inner = copy.copy(self)
        whole = self.axis is None
        rank = len(input[0].shape)
        inner.axis = 1 if whole else self.axis % rank + 1
        if whole and hasattr(inner, "keep_dims"):
            inner.keep_dims = False
        inner.to_tensor = lambda data, dtype: _OfPrograms(np.asarray(data).astype(held_as(dtype), copy=False), dtype)
        count = max(len(arg.handle.data) for arg in input if lockstep.differs(arg.handle.data))
        found = stock(inner, tuple([_OfPrograms(_of_programs(arg, count, whole), arg.dtype) for arg in input]))
        kept = whole and getattr(self, "keep_dims", False)
        several = isinstance(found, (tuple, list))
        outputs = [_tensor(each, (1,) * rank if kept else None) for each in (found if several else (found,))]
        return tuple(outputs) if several else outputs[0]

    return apply_impl


def _of_programs(arg: Any, count: int, whole: bool) -> Any:
    """[programs, *shape] of a tensor; [programs, elements] if the `whole` tensor is reduced."""
    data, shape = arg.handle.data, [int(size) for size in arg.shape]
    data = lockstep.blocked(data, shape) if lockstep.differs(data) else np.broadcast_to(data, (count, *shape))
    return data.reshape(count, -1) if whole else data


def _tensor(found: _OfPrograms, shape: tuple[int, ...] | None) -> Any:
    """A result [programs, *shape] as a tensor of the language."""
    data = found.handle.data
    shape = data.shape[1:] if shape is None else shape
    handle = TensorHandle(lockstep.padded(data, shape), found.dtype)
    return tl.tensor(handle, tl.block_type(found.dtype, list(shape)) if shape else found.dtype)


_REDUCED = frozenset(
    {
        "_sum_combine",
        "_elementwise_max",
        "_elementwise_min",
        "_argmin_combine_tie_break_left",
        "_argmax_combine_tie_break_left",
    }
)
_SCANNED = frozenset({"_sum_combine", "_prod_combine"})
REDUCE_METHODS: dict[str, Callable[..., Any]] = {
    "sum": sum_reduce,
    "min_max": min_max,
    "apply_impl": _in_step(_STOCK_REDUCE, _REDUCED),
}
SCAN_METHODS: dict[str, Callable[..., Any]] = {
    "cumsum": _scan(np.add, ScanOps.cumsum),
    "cumprod": _scan(np.multiply, ScanOps.cumprod),
    "apply_impl": _in_step(_STOCK_SCAN, _SCANNED),
}
