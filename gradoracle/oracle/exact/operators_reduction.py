"""Rules for operators that combine elements along dims: sums, extremes, scans, softmax, products, solves."""

from __future__ import annotations

import math
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


@rule("aten.mm.default")
def _mm(reader: Reader, a: Value, b: Value) -> Array:
    return reader.field.matmul(reader.real(a), reader.real(b))


@rule("aten.bmm.default")
def _bmm(reader: Reader, a: Value, b: Value) -> Array:
    a, b = reader.real(a), reader.real(b)
    out = np.empty((a.shape[0], a.shape[1], b.shape[2]), dtype=object)
    for i in range(a.shape[0]):
        out[i] = reader.field.matmul(a[i], b[i])
    return out


@rule("aten.linalg_solve_triangular.default")
def _solve_triangular(
    reader: Reader, a: Value, b: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    """X with A X = B (X A = B where not ``left``); A is read on and above (below) its diagonal only."""
    a, b = reader.real(a), reader.real(b)
    if not left:  # X A = B is A^T X^T = B^T
        a, b, upper = a.swapaxes(-1, -2), b.swapaxes(-1, -2), not upper
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    many = math.prod(batch)
    a = np.broadcast_to(a, (*batch, *a.shape[-2:])).reshape(many, *a.shape[-2:])
    b = np.broadcast_to(b, (*batch, *b.shape[-2:])).reshape(many, *b.shape[-2:])
    out = np.empty(b.shape, dtype=object)
    for system in range(many):
        out[system] = _substituted(reader, a[system], b[system], upper, unitriangular)
    out = out.reshape(*batch, *b.shape[-2:])
    return out if left else out.swapaxes(-1, -2)


def _substituted(reader: Reader, a: Array, b: Array, upper: bool, unitriangular: bool) -> Array:
    """[n, n], [n, m] -> [n, m], row after row."""
    field, n = reader.field, len(a)
    x = boxed(b.copy())
    for row in reversed(range(n)) if upper else range(n):
        known = slice(row + 1, n) if upper else slice(0, row)
        if known.stop > known.start:
            x[row] = field.apply("sub", x[row], field.matmul(a[row : row + 1, known], x[known])[0])
        if not unitriangular:
            x[row] = field.apply("div", x[row], boxed(a[row, row]))
    return x
