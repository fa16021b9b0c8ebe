"""The float numbers in a widened kernel and its wrapper: which there are, and the same run with one replaced."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from gradoracle.execution.interpreter.intervention import Intervention, statement
from gradoracle.execution.interpreter.wrong_accesses import SourceLine


class Site(NamedTuple):
    """Where a number enters: a statement that computes with it, or a launch with its argument's name."""

    place: SourceLine
    argument: str
    value: float


class Numbers(Intervention):
    """Changes nothing, and lists the numbers other than 0, infinities and NaN.

    Attributes:
        sites: in the order in which they are first used.
    """

    def __init__(self) -> None:
        self._sites: dict[Site, None] = {}

    @property
    def sites(self) -> tuple[Site, ...]:
        """Where numbers enter."""
        return tuple(self._sites)

    def number(self, value: float, argument: str = "") -> float:
        """As it is."""
        if value and math.isfinite(value):
            place = statement()
            if place is not None:
                self._sites.setdefault(Site(place, argument, float(value)))
        return value


class Replaced(Intervention):
    """Replaces a number at some sites.

    Args:
        sites: all of one value.
        by: what the number is instead.
    """

    def __init__(self, sites: Collection[Site], by: float) -> None:
        self._sites, self._by = frozenset(sites), by
        self._value = next(iter(self._sites)).value

    def number(self, value: float, argument: str = "") -> float:
        """Replaced at these sites."""
        if value != self._value:
            return value
        place = statement()
        return self._by if place is not None and Site(place, argument, self._value) in self._sites else value
