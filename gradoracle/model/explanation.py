"""Explanation: what at a line of a kernel explains a violation: lost precision, or a wrong constant."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

_SAME = 1e-12  # relative: two ways to compute one number in float64


@dataclass(frozen=True)
class Place:
    """A line of a kernel or of its wrapper.

    Attributes:
        file: the path, as Python compiled it.
        line: the number of the line, from 1.
        function: the name of the function that it stands in.
    """

    file: str
    line: int
    function: str

    @property
    def source(self) -> str:
        """The text of the line, without indentation; "" where the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()


@dataclass(frozen=True)
class Statement(Place):
    """A statement that rounds.

    Attributes:
        error: the largest error / budget with this statement alone rounding as it is written.
    """

    error: float


@dataclass(frozen=True)
class PrecisionLoss:
    """Where precision is lost.

    Attributes:
        statement: the statement that loses it.
        source: the text of the statement.
        others: other statements that break the contract alone, by falling error.
        together: whether several statements have to round for the contract to be broken; then ``others`` are those, and
            errors are what is left if a statement does not round.
    """

    statement: Statement
    source: str
    others: tuple[Statement, ...] = ()
    together: bool = False

    def mapped(self, shown: Callable[[str], str]) -> PrecisionLoss:
        """The same with the paths of files changed."""
        lead, *others = (replace(each, file=shown(each.file)) for each in (self.statement, *self.others))
        return replace(self, statement=lead, others=tuple(others))


@dataclass(frozen=True)
class WrongConstant(Place):
    """A number with which the widened kernel breaks its contract, and the one with which it holds.

    Its place is that of its first use.

    Attributes:
        argument: the name of the launched kernel's argument that it is; "" where an expression holds it.
        value: the value as it is.
        fitted: the value with which the error is within the budget.
        uncertainty: the distance by which rounding may move the fitted value.
        uses: the number of statements that use it; all were changed.
        others: other numbers that would explain the error as well, each alone.
        name: the name of the fitted value, such as ``log2 e``; "" where it has none, or several.
    """

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
