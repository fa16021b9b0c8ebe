"""Rules for matrix products and triangular systems."""

from __future__ import annotations

import math

import numpy as np

from gradoracle.oracle.exact.scalars import Array, Reader, Value, boxed, rule


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
