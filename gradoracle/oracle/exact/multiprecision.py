"""Multiprecision: a second opinion, independent of the balls, by mpmath (with gmpy2 if it is installed)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import torch
from mpmath import mp, mpf
from torch import Tensor

from gradoracle.oracle.exact.enclosure import Expansion
from gradoracle.oracle.exact.graph import Graph
from gradoracle.oracle.exact.interpretation import interpret
from gradoracle.oracle.exact.scalars import ARITHMETIC, EQUAL, GREATER, LESS, UNORDERED, Array, Field, names

OPERATIONS = 40_000_000  # about half a minute at 40 digits
GUARD = 10  # additional digits, against rounding in the graph


class Multiprecision(Field):
    """Binary floating point with ``digits`` decimal digits and unbounded exponents, each operation rounded.

    Nothing is unknown: comparisons compare the computed numbers.
    """

    reading = "mpmath"

    def __init__(self, digits: int) -> None:
        self.digits = digits
        self.unknown = mpf("nan")
        same = "exp expm1 log log10 log1p sqrt tanh erf erfc sin cos tan atan sinh cosh"
        plain: dict[str, Callable[..., Any]] = {
            **ARITHMETIC,
            **{name: getattr(mpmath, name) for name in names(same)},
            "pow": mpmath.power,
            "maximum": max,
            "minimum": min,
            "exp2": lambda x: mpmath.power(2, x),
            "log2": lambda x: mpmath.log(x) / mpmath.log(2),
            "rsqrt": lambda x: 1 / mpmath.sqrt(x),
            "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
        }
        self.functions = {name: _real(function) for name, function in plain.items()}

    def context(self) -> AbstractContextManager[Any]:
        """mpmath's working precision, for the length of a reading."""
        context: AbstractContextManager[Any] = mp.workdps(self.digits + GUARD)
        return context

    def exact(self, x: float | int | bool) -> Any:
        """A float64 or an integer is one of the numbers."""
        return mpf(x)

    def constant(self, name: str) -> Any:
        """A mathematical constant at the working precision."""
        if name == "2/sqrt(pi)":
            return 2 / mpmath.sqrt(mp.pi)
        return +{"ln2": mp.ln2, "ln10": mp.ln10, "pi": mp.pi}[name]

    def is_finite(self, x: Any) -> bool:
        """Neither infinite nor NaN."""
        return bool(mp.isfinite(x))

    def kind(self, x: Any) -> float | None:
        """Never None."""
        return 0.0 if mp.isfinite(x) else float(x)

    def order(self, x: Any, y: Any) -> int:
        """As computed."""
        if x < y:
            return LESS
        if x > y:
            return GREATER
        return EQUAL if x == y else UNORDERED

    def hull(self, x: Any, y: Any) -> Any:
        """Never needed: no comparison is unknown."""
        raise AssertionError("mpmath leaves no comparison unknown")

    def midpoint(self, x: Any) -> Any:
        """The number."""
        return x

    def floor(self, x: Any) -> int | None:
        """The largest integer that is at most x."""
        return int(mp.floor(x))

    def product(self, a: Array, b: Array) -> Array:
        """Sums of products, each rounded once."""
        out = np.empty((a.shape[0], b.shape[1]), dtype=object)
        columns = [b[:, j].tolist() for j in range(b.shape[1])]
        for i, row in enumerate(a.tolist()):
            for j, column in enumerate(columns):
                out[i, j] = mp.fdot(row, column)
        return out


def _real(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function where it is real; NaN if mpmath leaves the reals or divides by 0 (the rules then decide)."""

    def guarded(*operands: Any) -> Any:
        try:
            value = function(*operands)
        except (ZeroDivisionError, ValueError, OverflowError):
            return mpf("nan")
        return mpf("nan") if isinstance(value, mp.mpc) else value

    return guarded


def read(graph: Graph, args: Sequence[Tensor], *, digits: int = 40, operations: int = OPERATIONS) -> list[Expansion]:
    """Every output of the graph, with ``digits`` decimal digits and 10 guard digits (arguments as of ``interpret``).

    Raises:
        UnsupportedOperator: the graph has an operator without a rule.
        TooLarge: it takes more than ``operations``.
    """
    field = Multiprecision(digits)
    with field.context():
        return [_expanded(out) for out in interpret(graph, args, field, operations)]


@dataclass(frozen=True)
class Settled(Expansion):
    """A tensor at two precisions: ``spread`` is their distance (evidence, no proof), ``unsettled`` marks where it is
    larger than expected, ``digits`` is the larger precision."""

    spread: Tensor
    unsettled: Tensor
    digits: int


def settle(
    graph: Graph,
    args: Sequence[Tensor],
    widest: Sequence[Tensor],
    *,
    digits: int = 40,
    max_digits: int = 1280,
    operations: int = OPERATIONS,
) -> list[Settled]:
    """Every output, with the digits doubled until two readings in a row differ by at most ``widest``.

    One reading does not show what cancellation took from it; two that agree do, short of a coincidence.

    Args:
        graph, args, operations: as of ``interpret``; the limit is the same for any number of digits.
        widest: the largest difference, one float64 tensor per output (broadcast to it).
        digits, max_digits: of the first reading, and at most.

    Raises:
        UnsupportedOperator, TooLarge: as ``read``.
    """
    before = read(graph, args, digits=digits, operations=operations)
    while True:
        digits = min(2 * digits, max_digits)
        after = read(graph, args, digits=digits, operations=operations)
        found = [_settled(old, new, limit, digits) for old, new, limit in zip(before, after, widest, strict=True)]
        if digits >= max_digits or not any(bool(x.unsettled.any()) for x in found):
            return found
        before = after


def _settled(old: Expansion, new: Expansion, limit: Tensor, digits: int) -> Settled:
    same = (old.high == new.high) & (old.low == new.low) | (old.high.isnan() & new.high.isnan())
    gap = ((new.high - old.high) + (new.low - old.low)).abs() + 2.0**-105 * new.high.abs()
    spread = torch.where(same, torch.where(new.high.isfinite(), 2.0**-105 * new.high.abs(), 0.0), gap)
    return Settled(new.high, new.low, spread, ~((spread <= limit) | (spread == 0)), digits)


def _expanded(numbers: Array) -> Expansion:
    high = [float(x) for x in numbers.ravel()]
    low = [float(x - h) if math.isfinite(h) else 0.0 for x, h in zip(numbers.ravel(), high, strict=True)]
    return Expansion(*(torch.tensor(part, dtype=torch.float64).reshape(numbers.shape) for part in (high, low)))
