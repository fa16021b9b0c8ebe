"""Numbers a + b e + c f + d e f with e e = f f = 0, of mpmath: what a function of them gives has its derivatives."""

from __future__ import annotations

from dataclasses import dataclass

from mpmath import mp, mpf

ZERO = mpf(0)


@dataclass(frozen=True)
class Hyperdual:
    """A value, what it is moved by along two directions, and along both: the second derivative."""

    value: mpf
    first: mpf = ZERO
    second: mpf = ZERO
    both: mpf = ZERO

    def __add__(self, other: Hyperdual) -> Hyperdual:
        return Hyperdual(
            self.value + other.value, self.first + other.first, self.second + other.second, self.both + other.both
        )

    def __neg__(self) -> Hyperdual:
        return Hyperdual(-self.value, -self.first, -self.second, -self.both)

    def __sub__(self, other: Hyperdual) -> Hyperdual:
        return self + -other

    def __mul__(self, other: Hyperdual) -> Hyperdual:
        a, b = self, other
        return Hyperdual(
            a.value * b.value,
            a.first * b.value + a.value * b.first,
            a.second * b.value + a.value * b.second,
            a.both * b.value + a.first * b.second + a.second * b.first + a.value * b.both,
        )

    def exp(self) -> Hyperdual:
        """e to this power; 0 with no derivative at -inf."""
        size = mp.exp(self.value)
        moved = self.both + self.first * self.second
        return Hyperdual(size, size * self.first, size * self.second, size * moved)
