"""Wrong constant: a float of a kernel's source whose value explains the error that a widened kernel keeps."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

_SAME = 1e-12  # relative: two ways to compute one number in float64


@dataclass(frozen=True)
class WrongConstant:
    """A number with which the widened kernel breaks its contract, and the one with which it holds.

    Attributes:
        file: in which it is used first, as Python compiled it.
        line: from 1.
        function: the name of the function that the line stands in.
        argument: the name of the launched kernel's argument that it is; "" where an expression holds it.
        value: as it is.
        fitted: with which the error is within the budget.
        uncertainty: how far rounding may move the fitted value.
        uses: at how many statements it is used, and was replaced.
        others: further numbers each of which would explain the error as well.
        name: of the fitted value, such as ``log2 e``; "" where it has none, or several.
    """

    file: str
    line: int
    function: str
    argument: str
    value: float
    fitted: float
    uncertainty: float
    uses: int = 1
    others: tuple[WrongConstant, ...] = ()
    name: str = ""

    def mapped(self, shown: Callable[[str], str]) -> WrongConstant:
        """The same with the paths of files changed."""
        return replace(self, file=shown(self.file), others=tuple(each.mapped(shown) for each in self.others))

    @property
    def source(self) -> str:
        """The text of the line, without indentation; "" where the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def recognised(self, numbers: Mapping[str, float]) -> WrongConstant | None:
        """The constant with the one number that its fitted value is, of either sign, to its uncertainty.

        None where that is none of the numbers or several of them, or where the value as it is would do.

        Args:
            numbers: none negative, by name; several names may have one value.
        """
        size = abs(self.fitted)
        known = {name: value for name, value in numbers.items() if abs(value - size) <= self.uncertainty}
        if not known or abs(self.value - self.fitted) <= self.uncertainty:
            return None
        value = next(iter(known.values()))
        if not all(math.isclose(value, each, rel_tol=_SAME) for each in known.values()):
            return None
        name = next(iter(known)) if len(known) == 1 else ""
        fitted = math.copysign(value, self.fitted) if value else 0.0
        return replace(self, fitted=fitted, name="" if name == f"{value:.9g}" else name)
