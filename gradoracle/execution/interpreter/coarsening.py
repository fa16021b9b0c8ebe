"""Coarsening: a widened kernel in which every result is rounded to fewer bits than float64 has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch

from gradoracle.execution.interpreter.intervention import Intervention

T = TypeVar("T")

_SPLITTABLE = 2.0**900  # numbers beyond it would overflow where they are split


class Coarsened(Intervention):
    """Rounds what every operation gives to ``bits`` bits, as a factor times it, divided by the factor.

    With a factor that is no power of two numbers are rounded that need few bits, too: where 1 + 1e-20 is 1, it errs.

    Args:
        bits: of the significand.
        factors: in (1/2, 1], one for each operation in turn. With one factor for all, equal numbers err alike wherever
            they are computed, and what is only moved is rounded once.
    """

    def __init__(self, bits: int, factors: Iterator[float]) -> None:
        self._splitter, self._factors = 2.0 ** (53 - bits) + 1, factors

    def value(self, wide: T, narrow: Callable[[], T]) -> T:
        """Rounded, if it is float64."""
        return self._rounded(wide)

    def _rounded(self, wide: Any) -> Any:
        array = isinstance(wide, np.ndarray)
        if wide.dtype != (np.float64 if array else torch.float64):
            return wide
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            factor = next(self._factors)
            scaled = wide * factor
            split = scaled * self._splitter
            rounded = (split - (split - scaled)) / factor
            return (np if array else torch).where(abs(wide) < _SPLITTABLE, rounded, wide)
