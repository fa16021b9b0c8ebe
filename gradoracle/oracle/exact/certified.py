"""Certified: the truth with a proven radius, by ball arithmetic (Arb, through python-flint)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradoracle.model.formats import FORMATS
from gradoracle.oracle.exact.enclosure import Enclosure
from gradoracle.oracle.exact.graph import Graph
from gradoracle.oracle.exact.interpretation import interpret
from gradoracle.oracle.exact.scalars import (
    ARITHMETIC,
    EQUAL,
    GREATER,
    LESS,
    UNKNOWN,
    UNORDERED,
    Array,
    Field,
    Undecided,
    names,
)

try:
    import flint
    from flint import arb, arb_mat
except ImportError:
    flint = None  # type: ignore[assignment]

OPERATIONS = 100_000_000  # about half a minute at 128 bits
Widest = Sequence[Tensor] | Callable[[list[Enclosure]], Sequence[Tensor]]


class Unavailable(Exception):
    """The certified reading is not available here."""


def unavailable() -> str | None:
    """Why there is no certified reading here, in one sentence; None if there is one."""
    if flint is None:
        return "the certified reading needs python-flint, which is not installed: pip install python-flint"
    return None


class Balls(Field):
    """Real balls: a midpoint and a radius, in ``bits`` of precision with unbounded exponents."""

    reading = "certified"

    def __init__(self, bits: int) -> None:
        missing = unavailable()
        if missing:
            raise Unavailable(missing)
        self.bits = bits
        self.unknown = arb(0, math.inf)
        self.functions = {
            **ARITHMETIC,
            **{name: getattr(arb, name) for name in names("exp expm1 log log1p sqrt rsqrt sinh cosh")},
            **{name: _bounded(getattr(arb, name)) for name in names("tanh erf erfc sin cos tan atan")},
            "sigmoid": _bounded(_sigmoid),
            "pow": _pow,
            "maximum": arb.max,
            "minimum": arb.min,
            "exp2": lambda x: (x * arb.const_log2()).exp(),
            "log2": lambda x: x.log() / arb.const_log2(),
            "log10": lambda x: x.log() / arb.const_log10(),
        }

    @contextmanager
    def context(self) -> Iterator[None]:
        """Sets flint's precision, and restores the previous one."""
        before = flint.ctx.prec
        flint.ctx.prec = self.bits
        try:
            yield
        finally:
            flint.ctx.prec = before

    def exact(self, x: float | int | bool) -> Any:
        """An exact ball."""
        return arb(x)

    def constant(self, name: str) -> Any:
        """A mathematical constant at the working precision."""
        if name == "2/sqrt(pi)":
            return 2 * arb.pi().rsqrt()
        return {"ln2": arb.const_log2, "ln10": arb.const_log10, "pi": arb.pi}[name]()

    def is_finite(self, x: Any) -> bool:
        """Whether midpoint and radius are."""
        return bool(x.is_finite())

    def kind(self, x: Any) -> float | None:
        """A NaN midpoint is NaN: every indeterminate result was decided or replaced by an unknown before."""
        if x.is_finite():
            return 0.0
        if x.is_nan():
            return math.nan
        if not x.rad().is_finite():
            return None
        return math.inf if x > 0 else -math.inf

    def order(self, x: Any, y: Any) -> int:
        """Equal if both are one exact number, or one and the same ball: the same quantity."""
        if x < y:
            return LESS
        if x > y:
            return GREATER
        kinds = self.kind(x), self.kind(y)
        if any(kind is not None and math.isnan(kind) for kind in kinds):
            return UNORDERED
        if kinds == (0.0, 0.0):
            return EQUAL if x is y or x == y else UNKNOWN
        return EQUAL if None not in kinds and kinds[0] == kinds[1] else UNKNOWN

    def hull(self, x: Any, y: Any) -> Any:
        """A ball over both; unknown if they are not finite, unless they are the same infinity."""
        if x.is_finite() and y.is_finite():
            return x.union(y)
        kinds = self.kind(x), self.kind(y)
        return x if kinds[0] in (math.inf, -math.inf) and kinds[0] == kinds[1] else self.unknown

    def midpoint(self, x: Any) -> Any:
        """The midpoint as an exact ball; infinities and NaN as they are."""
        return x.mid() if self.kind(x) is not None else arb(0)

    def floor(self, x: Any) -> int | None:
        """By the ends of the ball."""
        whole = x.floor().unique_fmpz()
        return None if whole is None else int(whole)

    def product(self, a: Array, b: Array) -> Array:
        """Arb's matrix product."""
        left = arb_mat(a.shape[0], a.shape[1], a.ravel().tolist())
        right = arb_mat(b.shape[0], b.shape[1], b.ravel().tolist())
        out = np.empty(a.shape[0] * b.shape[1], dtype=object)
        out[:] = (left * right).entries()
        return out.reshape(a.shape[0], b.shape[1])


def _bounded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A bounded function, of finite balls only: an unknown number may be NaN, and sin(inf) is."""
    return lambda x: function(x) if x.is_finite() else x


def _pow(x: Any, y: Any) -> Any:
    return x**y if x.is_finite() and y.is_finite() else arb.nan()


def _sigmoid(x: Any) -> Any:
    if x > 0:
        return 1 / (1 + (-x).exp())
    small = x.exp()
    return small / (1 + small)


def read(graph: Graph, args: Sequence[Tensor], *, bits: int = 128, operations: int = OPERATIONS) -> list[Enclosure]:
    """Every output of the graph with a proven radius, at ``bits`` bits of precision (arguments as of ``interpret``).

    Raises:
        UnsupportedOperator: the graph has an operator without a rule.
        TooLarge: it takes more than ``operations``.
        Unavailable: python-flint is missing.
    """
    field = Balls(bits)
    try:
        outputs = interpret(graph, args, field, operations)
    except Undecided:
        outputs = [np.full(tuple(n.meta["val"].shape), field.unknown, dtype=object) for n in graph.outputs]
    return [enclosed(out, field) for out in outputs]


def certify(
    graph: Graph,
    args: Sequence[Tensor],
    widest: Widest,
    *,
    max_bits: int = 4096,
    operations: int = OPERATIONS,
) -> list[Enclosure]:
    """Every output with a radius of at most ``widest``, doubling the precision until that holds or it is the largest.

    Args:
        graph, args, operations: as of ``interpret``; the limit is the same at any precision.
        widest: the largest radius, one float64 tensor per output (broadcast to it), or a function that gives them for
            the enclosures so far.
        max_bits: the largest precision; the first is 128 bits.

    Returns:
        Enclosures whose ``undecided`` marks what is still wider (or not known at all).

    Raises:
        UnsupportedOperator, TooLarge, Unavailable: as ``read``.
    """
    bits = 128
    while True:
        balls = read(graph, args, bits=bits, operations=operations)
        limits = widest(balls) if callable(widest) else widest
        wide = [_wider(ball, limit.to("cpu", torch.float64)) for ball, limit in zip(balls, limits, strict=True)]
        if bits >= max_bits or not any(bool(w.any()) for w in wide):
            return [replace(ball, undecided=undecided) for ball, undecided in zip(balls, wide, strict=True)]
        bits = min(2 * bits, max_bits)


def _wider(ball: Enclosure, limit: Tensor) -> Tensor:
    """Where the radius exceeds the limit (always, for a NaN limit); an exact truth, infinite or NaN too, never does."""
    return ~((ball.radius <= limit) | (ball.radius == 0))


def enclosed(numbers: Array, field: Balls) -> Enclosure:
    """Balls as tensors of their shape; those that are unknown or that float64 cannot hold are undecided."""
    high, low, radius = (np.empty(numbers.size, dtype=np.float64) for _ in range(3))
    with field.context():
        for i, x in enumerate(numbers.ravel()):
            high[i], low[i], radius[i] = _split(x, field)
    upper, lower, width = (torch.from_numpy(part).reshape(numbers.shape) for part in (high, low, radius))
    return Enclosure(upper, lower, width, width.isinf(), field.bits)


def _split(x: Any, field: Balls) -> tuple[float, float, float]:
    """high, low and a radius around high + low that holds the ball x."""
    if not x.is_finite():
        kind = field.kind(x)
        return (math.nan, 0.0, math.inf) if kind is None else (kind, 0.0, 0.0)
    high = float(x)
    if math.isinf(high):  # beyond float64's range: decided only if the whole ball is
        beyond = x.abs_lower() > LARGEST
        return (high, 0.0, 0.0) if beyond else (math.copysign(LARGEST, high), 0.0, math.inf)
    rest = x - high
    low = float(rest)
    out = (rest - low).abs_upper()
    if out == 0:
        return high, low, 0.0
    return high, low, math.nextafter(math.nextafter(float(out), math.inf), math.inf)


LARGEST = FORMATS["float64"].largest
