"""Rules for comparisons, selections and sorting. A comparison may be unknown, and is never guessed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradoracle.oracle.exact.scalars import (
    CONSTANT,
    EQUAL,
    GREATER,
    LESS,
    UNKNOWN,
    UNORDERED,
    Array,
    Reader,
    Rule,
    Truths,
    Undecided,
    Value,
    boxed,
    rule,
    truths,
)

HOLDS = {
    "eq": (EQUAL,),
    "ne": (LESS, GREATER, UNORDERED),
    "lt": (LESS,),
    "le": (LESS, EQUAL),
    "gt": (GREATER,),
    "ge": (GREATER, EQUAL),
}


def _comparison(name: str) -> Rule:
    def compare(reader: Reader, x: Value, y: Value) -> Tensor | Truths:
        orders = reader.field.orders(reader.real(x), reader.real(y))
        return truths(np.isin(orders, HOLDS[name]), orders == UNKNOWN)

    return compare


for _name in HOLDS:
    rule(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_comparison(_name))


@rule("aten.isnan.default", "aten.isinf.default")
def _kind(reader: Reader, x: Value) -> Tensor | Truths:
    kinds = [reader.field.kind(a) for a in reader.real(x).ravel()]
    known = torch.tensor([0.0 if kind is None else kind for kind in kinds], dtype=torch.float64)
    test: Any = reader.node.target
    return truths(test(known.reshape(reader.shape)), np.reshape([kind is None for kind in kinds], reader.shape))


def _boolean(reader: Reader, x: Value) -> tuple[Tensor, Tensor]:
    """The values and which of them are unknown."""
    if isinstance(x, np.ndarray):
        sides = reader.field.orders(x, reader.real(0.0))
        return torch.from_numpy(sides != EQUAL), torch.from_numpy(sides == UNKNOWN)
    if isinstance(x, Truths):
        return x.values & ~x.unknown, x.unknown
    values = torch.as_tensor(x)
    return values != 0, torch.zeros_like(values, dtype=torch.bool)


@rule("aten.logical_and.default", "aten.bitwise_and.Tensor", "aten.bitwise_and.Scalar")
def _and(reader: Reader, x: Value, y: Value) -> Tensor | Truths:
    (a, open_a), (b, open_b) = _boolean(reader, x), _boolean(reader, y)
    false = (~a & ~open_a) | (~b & ~open_b)
    return truths(a & b, (open_a | open_b) & ~false)


@rule("aten.logical_or.default", "aten.bitwise_or.Tensor", "aten.bitwise_or.Scalar")
def _or(reader: Reader, x: Value, y: Value) -> Tensor | Truths:
    (a, open_a), (b, open_b) = _boolean(reader, x), _boolean(reader, y)
    true = (a & ~open_a) | (b & ~open_b)
    return truths(a | b, (open_a | open_b) & ~true)


@rule("aten.logical_xor.default", "aten.bitwise_xor.Tensor")
def _xor(reader: Reader, x: Value, y: Value) -> Tensor | Truths:
    (a, open_a), (b, open_b) = _boolean(reader, x), _boolean(reader, y)
    return truths(a ^ b, open_a | open_b)


@rule("aten.logical_not.default", "aten.bitwise_not.default")
def _not(reader: Reader, x: Value) -> Tensor | Truths:
    a, open_a = _boolean(reader, x)
    return truths(~a, open_a)


_SHIFTS = [f"aten.__{name}__.{kind}" for name in ("lshift", "rshift") for kind in ("Tensor", "Scalar")]
_SHIFTS += [
    f"aten.bitwise_{way}_shift.{kind}"
    for way in ("left", "right")
    for kind in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
]


@rule(*_SHIFTS)
def _shifted(reader: Reader, x: Value, y: Value) -> Tensor:
    """Integers are shifted as they are; what an undecided comparison gave has no value to shift."""
    if isinstance(x, Truths) or isinstance(y, Truths):
        raise Undecided(str(reader.node))
    shift: Any = reader.node.target
    found: Tensor = shift(x, y)
    return found


@rule("aten.any.default", "aten.any.dim", "aten.any.dims")
def _any(reader: Reader, x: Value, *args: Any, **kwargs: Any) -> Tensor | Truths:
    a, unknown = _boolean(reader, x)
    over: Any = reader.node.target
    return truths(over(a, *args, **kwargs), over(unknown, *args, **kwargs) & ~over(a, *args, **kwargs))


@rule("aten.where.self")
def _where(reader: Reader, condition: Value, x: Value, y: Value) -> Value:
    if not reader.dtype.is_floating_point:
        return _where_integers(reader, condition, x, y)
    return _chosen(reader, condition, reader.real(x), reader.real(y))


def _chosen(reader: Reader, condition: Value, x: Array, y: Array) -> Array:
    """x where the condition holds, y where not, a hull of both where it is unknown; the very numbers, not copies."""
    values, unknown = _boolean(reader, condition)
    out = boxed(np.where(values.numpy(), x, y))
    if bool(unknown.any()):
        _, spread, left, right = np.broadcast_arrays(out, unknown.numpy(), x, y)
        for index in zip(*np.nonzero(spread), strict=True):
            out[index] = left[index] if left[index] is right[index] else reader.field.hull(left[index], right[index])
    return out


def _where_integers(reader: Reader, condition: Value, x: Value, y: Value) -> Tensor | Truths:
    values, unknown = _boolean(reader, condition)
    if reader.dtype is not torch.bool:
        if bool(unknown.any()):
            raise Undecided(str(reader.node))
        return torch.where(values, torch.as_tensor(x), torch.as_tensor(y)).to(reader.dtype)
    (a, open_a), (b, open_b) = _boolean(reader, x), _boolean(reader, y)
    chosen, chosen_open = torch.where(values, a, b), torch.where(values, open_a, open_b)
    return truths(chosen, torch.where(unknown, (a ^ b) | open_a | open_b, chosen_open))


CONSTANT.add("aten.where.self")


# Sorting: the indices must be decided. Among equals the first comes first; NaN counts as the largest.


def _ranking(reader: Reader, line: Array, sign: int) -> list[int]:
    def compare(i: int, j: int) -> int:
        side = reader.field.order(line[i], line[j])
        if side == UNKNOWN:
            raise Undecided(str(reader.node))
        if side == UNORDERED:
            nan = [reader.field.kind(line[k]) != reader.field.kind(line[k]) for k in (i, j)]
            side = int(nan[0]) - int(nan[1])
        return sign * side

    return sorted(range(len(line)), key=functools.cmp_to_key(compare))


def _ranked(reader: Reader, x: Array, dim: int, descending: bool) -> Tensor:
    """[..., n, ...] indices along ``dim`` in order."""
    lines = np.moveaxis(x, dim, -1)
    order = np.empty(lines.shape, dtype=np.int64)
    for index in np.ndindex(*lines.shape[:-1]):
        order[index] = _ranking(reader, lines[index], -1 if descending else 1)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(order, -1, dim)))


def _taken(x: Array, indices: Tensor, dim: int) -> Array:
    return np.take_along_axis(x, indices.numpy(), axis=dim)


@rule("aten.sort.default", "aten.sort.stable")
def _sort(
    reader: Reader, x: Value, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> Sequence[Value]:
    x = reader.real(x)
    if x.ndim == 0:
        return x, torch.zeros((), dtype=torch.int64)
    indices = _ranked(reader, x, dim, descending)
    return _taken(x, indices, dim), indices


@rule("aten.topk.default")
def _topk(
    reader: Reader, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Sequence[Value]:
    x = reader.real(x)
    indices = _ranked(reader, x, dim, largest).narrow(dim, 0, k).contiguous()
    return _taken(x, indices, dim), indices


@rule("aten.max.dim", "aten.min.dim")
def _extreme(reader: Reader, x: Value, dim: int, keepdim: bool = False) -> Sequence[Value]:
    x = reader.real(x)
    indices = _ranked(reader, x, dim, ".max." in str(reader.node.target)).narrow(dim, 0, 1).contiguous()
    values = _taken(x, indices, dim)
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


@rule("aten.argmax.default", "aten.argmin.default")
def _argument(reader: Reader, x: Value, dim: int | None = None, keepdim: bool = False) -> Tensor:
    x = reader.real(x)
    flat, over = (x.reshape(-1), 0) if dim is None else (x, dim)
    indices = _ranked(reader, flat, over, "argmax" in str(reader.node.target)).narrow(over, 0, 1)
    return indices.reshape(reader.shape)
