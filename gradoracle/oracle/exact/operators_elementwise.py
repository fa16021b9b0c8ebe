"""Rules for elementwise operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradoracle.oracle.exact.scalars import (
    EQUAL,
    GREATER,
    LESS,
    UNKNOWN,
    UNORDERED,
    Array,
    Reader,
    Rule,
    Undecided,
    Value,
    boxed,
    names,
    rule,
    truths,
)

_UNARY = names(
    "neg abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal tanh sigmoid erf erfc sin cos tan atan sinh cosh"
)


def _unary(name: str) -> Rule:
    return lambda reader, x: reader.field.apply(name, reader.real(x))


for _name in _UNARY:
    rule(f"aten.{_name}.default")(_unary(_name))


@rule("aten.add.Tensor", "aten.add.Scalar")
def _add(reader: Reader, x: Value, y: Value, alpha: float = 1) -> Array:
    return reader.field.apply("add", reader.real(x), _scaled(reader, y, alpha))


@rule("aten.sub.Tensor", "aten.sub.Scalar")
def _sub(reader: Reader, x: Value, y: Value, alpha: float = 1) -> Array:
    return reader.field.apply("sub", reader.real(x), _scaled(reader, y, alpha))


def _scaled(reader: Reader, x: Value, alpha: float) -> Array:
    return reader.real(x) if alpha == 1 else reader.field.apply("mul", reader.real(x), reader.real(alpha))


@rule("aten.mul.Tensor", "aten.mul.Scalar", "prims.mul.default")
def _mul(reader: Reader, x: Value, y: Value) -> Array:
    return reader.field.apply("mul", reader.real(x), reader.real(y))


@rule("aten.div.Tensor", "aten.div.Scalar", "prims.div.default")
def _div(reader: Reader, x: Value, y: Value) -> Array:
    return reader.field.apply("div", reader.real(x), reader.real(y))


@rule("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def _pow(reader: Reader, x: Value, y: Value) -> Array:
    x = reader.real(x)
    if isinstance(y, (int, float)):
        if y == 2:
            return reader.field.apply("mul", x, x)
        if y in (0.5, -0.5):
            return reader.field.apply("sqrt" if y > 0 else "rsqrt", x)
        if y in (0, 1):
            return x if y == 1 else np.broadcast_to(boxed(reader.field.exact(1.0)), x.shape)
    return reader.field.apply("pow", x, reader.real(y))


# Kinks: values need no decision, only a hull.


def maximum(reader: Reader, x: Array, y: Array, sign: int = 1) -> Array:
    """The larger of x and y (the smaller for sign -1), NaN if either is; the very number, not a copy, if decided."""
    return boxed(np.frompyfunc(lambda a, b: _larger(reader, a, b, sign), 2, 1)(x, y))


def _larger(reader: Reader, a: Any, b: Any, sign: int) -> Any:
    side = sign * reader.field.order(a, b)
    if side in (GREATER, EQUAL):
        return a
    if side == LESS:
        return b
    name = "maximum" if sign == 1 else "minimum"
    kinds = reader.field.kind(a), reader.field.kind(b)
    if None in kinds:
        return reader.field.unknown
    return a if kinds[0] != kinds[0] else b if kinds[1] != kinds[1] else reader.field.functions[name](a, b)


@rule("aten.maximum.default", "aten.minimum.default")
def _maximum(reader: Reader, x: Value, y: Value) -> Array:
    sign = 1 if "maximum" in str(reader.node.target) else -1
    return maximum(reader, reader.real(x), reader.real(y), sign)


@rule("aten.relu.default")
def _relu(reader: Reader, x: Value) -> Array:
    return maximum(reader, reader.real(x), reader.real(0.0))


@rule("aten.clamp.default", "aten.clamp.Tensor")
def _clamp(reader: Reader, x: Value, min: Value = None, max: Value = None) -> Array:
    x = reader.real(x)
    x = x if min is None else maximum(reader, x, reader.real(min))
    return x if max is None else maximum(reader, x, reader.real(max), sign=-1)


@rule("aten.sign.default")
def _sign(reader: Reader, x: Value) -> Array:
    x, field = reader.real(x), reader.field
    sides = field.orders(x, reader.real(0.0))
    signs = {side: field.exact(float(side)) for side in (LESS, EQUAL, GREATER)}
    signs[UNORDERED] = signs[EQUAL]  # as PyTorch: the sign of NaN is 0

    def sign(side: int) -> Any:  # a hull of its own for each element: one ball is one quantity
        return field.hull(signs[LESS], signs[GREATER]) if side == UNKNOWN else signs[side]

    return boxed(np.frompyfunc(sign, 1, 1)(sides.astype(object)))


# Steps.


def _steps(name: str) -> Rule:
    def step(reader: Reader, x: Value, decimals: int = 0) -> Array:
        return boxed(np.frompyfunc(lambda a: _step(reader, a, name), 1, 1)(reader.real(x)))

    return step


def _step(reader: Reader, a: Any, name: str) -> Any:
    field = reader.field
    kind = field.kind(a)
    if kind is None or kind != 0.0:
        return field.unknown if kind is None else a
    low = field.floor(a)
    if low is None:
        return field.unknown
    if name != "floor":
        half = {"ceil": 0.0, "round": 0.5, "trunc": 0.0}[name]
        above = field.order(a, field.exact(low + half))
        if above == UNKNOWN:
            return field.unknown
        up = {
            "ceil": above == GREATER,
            "round": above == GREATER or (above == EQUAL and low % 2 == 1),  # to nearest even
            "trunc": above == GREATER and low < 0,
        }[name]
        low += int(up)
    return field.exact(low)


for _name in ("floor", "ceil", "round", "trunc"):
    rule(f"aten.{_name}.default")(_steps(_name))


@rule("aten._to_copy.default", "prims.convert_element_type.default")
def _to_copy(reader: Reader, x: Value, *_: Any, **kwargs: Any) -> Value:
    """To a float: unchanged (truth is not rounded); to an integer: truncated; to a boolean: whether it is not 0."""
    if reader.dtype.is_floating_point:
        return reader.real(x)
    if not isinstance(x, np.ndarray):
        raise Undecided(str(reader.node))
    if reader.dtype is torch.bool:
        sides = reader.field.orders(x, reader.real(0.0))
        return truths(sides != EQUAL, sides == UNKNOWN)
    return integers(reader, x).to(reader.dtype)


def integers(reader: Reader, x: Array) -> Tensor:
    """The integer parts, as an int64 tensor.

    Raises:
        Undecided: one of them is not decided at this precision.
    """
    field = reader.field
    whole = [
        field.floor(part) if field.is_finite(part) else None for part in (_step(reader, a, "trunc") for a in x.ravel())
    ]
    if None in whole:
        raise Undecided(str(reader.node))
    return torch.tensor(whole, dtype=torch.int64).reshape(x.shape)
