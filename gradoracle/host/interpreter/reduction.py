"""Reductions and scans, in an order of their own, with every addition rounded to the dtype.

A sum is a tree of halves: the second half of the elements is added to the first until one is left, as the shuffles of a
warp do. A GPU's order within a thread and between warps depends on the layout that its compiler chooses, so no order is
every GPU's. A scan adds one element after the other. numpy's own order depends on the processor and on the axis.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import ReduceOps, ScanOps, TensorHandle

from gradoracle.host.interpreter import intervention, lockstep
from gradoracle.host.interpreter.elementwise import require_wide
from gradoracle.host.interpreter.rounding import nearest, to_bf16
from gradoracle.host.interpreter.values import BF16, held_as

Scan = Callable[..., Any]
Rounded = Callable[[Any], Any]
_FEW_INSIDE, _MANY_OUTSIDE = 16, 64
_STOCK_REDUCE = ReduceOps.apply_impl
_STOCK_SCAN = ScanOps.apply_impl


def sum_reduce(self: Any, input: Any) -> Any:
    """Sum along `self.axis`."""
    data, name = input.handle.data, input.dtype.name
    require_wide(input.handle, True)
    if data.dtype.kind != "f":
        return self.to_tensor(_reduced(np.add, data, self.axis, self.keep_dims), input.dtype)

    def found(data: Any, rounded: Rounded) -> Any:
        return _tree(data, self.axis, self.keep_dims, rounded)

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
        total = rounded(data[:half] + data[half : 2 * half])
        data = np.concatenate([total, data[2 * half :]]) if len(data) % 2 else total
    result = data[0]
    if keep_dims:
        result = result.reshape((1,) * len(shape)) if along is None else np.expand_dims(result, axis)
    return result


def min_max(self: Any, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
    """The largest or smallest element, with the number where one of two is NaN; with an index, the first such element.

    Triton's copies the operand and warns of NaN.
    """
    input = input[0] if isinstance(input, tuple) else input
    require_wide(input.handle, False)
    data, axis = input.handle.data, self.axis
    if idx_reduce_op is None:
        fast = {np.nanmax: np.fmax, np.nanmin: np.fmin}[val_reduce_op]
        return self.to_tensor(_extreme(fast, data, axis, self.keep_dims), input.dtype)
    index = idx_reduce_op(data, axis=axis, keepdims=True)
    value = data.reshape(-1)[index].reshape(index.shape) if axis is None else np.take_along_axis(data, index, axis)
    if not self.keep_dims:
        value, index = (each.reshape(-1)[0] if axis is None else each.squeeze(axis) for each in (value, index))
    return self.to_tensor(value, input.dtype), self.to_tensor(index, tl.int32)


def _extreme(op: np.ufunc, data: Any, axis: int | None, keep_dims: bool) -> Any:
    """``op.reduce`` of fmax or fmin, where -0 is smaller than 0: numpy's choice depends on the processor."""
    found = _reduced(op, data, axis, keep_dims)
    if data.dtype.kind == "f" and not np.all(found):
        sought = (data == 0) & (np.signbit(data) == (op is np.fmin))
        there = sought.any(axis=axis, keepdims=keep_dims)
        zero, other = (0.0, -0.0) if op is np.fmax else (-0.0, 0.0)
        found = np.where(found == 0, np.where(there, zero, other), found).astype(data.dtype)
    return found


def _reduced(op: np.ufunc, data: Any, axis: int | None, keep_dims: bool) -> Any:
    """``op.reduce``; slice by slice if numpy would take many steps of few elements each."""
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
        each.handle.data = intervention.offered(each.handle.data, each.dtype.scalar.name)
    return scanned


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
