"""Rules for operators that combine elements along dims: sums, extremes, scans, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradoracle.oracle.exact.operators_elementwise import maximum
from gradoracle.oracle.exact.scalars import Array, Reader, Value, boxed, rule


def _axes(x: Array, dim: Sequence[int] | int | None) -> tuple[int, ...]:
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(x.ndim))
    return tuple(d % max(x.ndim, 1) for d in ([dim] if isinstance(dim, int) else dim)) if x.ndim else ()


@rule("aten.sum.dim_IntList")
def _sum(reader: Reader, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    x = reader.real(x)
    return reader.field.sum(x, _axes(x, dim), keepdim)


@rule("aten.prod.default", "aten.prod.dim_int")
def _prod(reader: Reader, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    x = reader.real(x)
    return reader.field.prod(x, _axes(x, dim), keepdim)


@rule("aten.amax.default", "aten.amin.default", "aten.max.default", "aten.min.default")
def _amax(reader: Reader, x: Value, dim: Any = None, keepdim: bool = False) -> Array:
    x = reader.real(x)
    sign = 1 if "max" in str(reader.node.target) else -1
    return extreme(reader, x, _axes(x, dim), keepdim, sign)


def extreme(reader: Reader, x: Array, axes: tuple[int, ...], keepdim: bool, sign: int = 1) -> Array:
    """The largest (smallest) element over ``axes``, which are not empty: the very number, not a copy, if decided."""
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    lines = np.moveaxis(x, axes, range(len(axes))).reshape(-1, *(n for a, n in enumerate(x.shape) if a not in axes))
    out = lines[0]
    for line in lines[1:]:
        out = maximum(reader, out, line, sign)
    out = boxed(out)
    return out.reshape(kept) if keepdim else out


@rule("aten.cumsum.default", "aten.cumprod.default")
def _cumulative(reader: Reader, x: Value, dim: int, *, dtype: Any = None) -> Array:
    return cumulative(reader, reader.real(x), dim, "add" if "cumsum" in str(reader.node.target) else "mul")


def cumulative(reader: Reader, x: Array, dim: int, name: str) -> Array:
    """Running sums (``add``) or products (``mul``) along ``dim``."""
    if x.ndim == 0 or x.size == 0:
        return x
    out = {"add": np.add, "mul": np.multiply}[name].accumulate(x, axis=dim)
    if not reader.field.finite(out).all():
        lines, steps = np.moveaxis(out, dim, 0), np.moveaxis(x, dim, 0)  # views: writing to lines writes to out
        for i in range(1, len(lines)):
            lines[i : i + 1] = reader.field.apply(name, lines[i - 1 : i], steps[i : i + 1])
    return boxed(out)


@rule("aten._softmax.default", "aten._log_softmax.default")
def _softmax(reader: Reader, x: Value, dim: int, half_to_float: bool) -> Array:
    x, field = reader.real(x), reader.field
    if x.ndim == 0:
        return _softmax(reader, x.reshape(1), 0, half_to_float).reshape(())
    if x.size == 0:
        return x
    # any shift is exact; one near the largest keeps the exponentials in range
    largest = extreme(reader, x, (dim % x.ndim,), keepdim=True)
    shifted = field.apply("sub", x, boxed(np.frompyfunc(field.midpoint, 1, 1)(largest)))
    exponentials = field.apply("exp", shifted)
    total = field.sum(exponentials, (dim % x.ndim,), keepdims=True)
    if "_log_softmax" in str(reader.node.target):
        return field.apply("sub", shifted, field.apply("log", total))
    return field.apply("div", exponentials, total)
