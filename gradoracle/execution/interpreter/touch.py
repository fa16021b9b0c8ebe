"""Touch: one access of elements of a launch's memory, and by whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gradoracle.execution.interpreter.footprint import View
from gradoracle.execution.interpreter.values import Array


class Touch(NamedTuple):
    """One access of elements `at` of a view's footprint, by the programs numbered `who`.

    Either `several` programs in lockstep make the same access, or `who` is one program, or one per element. `lanes`:
    of each element, which place of the block accesses it (``lanes.Lanes``).
    """

    view: View
    at: Array
    who: Any
    several: bool
    place: int
    lanes: Array | None = None

    @property
    def each(self) -> bool:
        """Whether each element has a program of its own."""
        return isinstance(self.who, np.ndarray) and self.who.ndim > 0


Track = Callable[[Touch], None]


def part(values: Array | None, on: Array) -> Array | None:
    """The values of some elements; None if all have the same."""
    return None if values is None else values[on]
