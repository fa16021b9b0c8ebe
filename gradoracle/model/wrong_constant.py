"""Wrong constant: a float of a kernel's source whose value explains the error that a widened kernel keeps."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

NAMED: Mapping[str, float] = MappingProxyType(
    {
        "log2 e": math.log2(math.e),
        "ln 2": math.log(2.0),
        "ln 10": math.log(10.0),
        "log10 e": math.log10(math.e),
        "e": math.e,
        "pi": math.pi,
        "2 pi": 2 * math.pi,
        "sqrt 2": math.sqrt(2.0),
        "1 / sqrt 2": math.sqrt(0.5),
        "sqrt (2 / pi)": math.sqrt(2 / math.pi),
        "2 / sqrt pi": 2 / math.sqrt(math.pi),
        "1 / sqrt (2 pi)": 1 / math.sqrt(2 * math.pi),
        "ln (2 pi)": math.log(2 * math.pi),
    }
)
_DIGITS = 17  # that tell any two float64 apart


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

    def mapped(self, shown: Callable[[str], str]) -> WrongConstant:
        """The same with the paths of files changed."""
        return replace(self, file=shown(self.file), others=tuple(each.mapped(shown) for each in self.others))

    @property
    def source(self) -> str:
        """The text of the line, without indentation; "" where the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def name(self) -> str:
        """The constant that the fitted value is, to its uncertainty; "" if it has no name."""
        found = (name for name, value in NAMED.items() if abs(value - abs(self.fitted)) <= self.uncertainty)
        return next(found, "")

    @property
    def shortest(self) -> str:
        """The fitted value with as few digits as its uncertainty leaves."""
        shown = (f"{self.fitted:.{digits}g}" for digits in range(1, _DIGITS))
        return next((each for each in shown if abs(float(each) - self.fitted) <= self.uncertainty), repr(self.fitted))

    @property
    def digits(self) -> int:
        """How many digits that has: the fewer, the likelier was it meant; 0 for a constant with a name."""
        significand = self.shortest.partition("e")[0].lstrip("-0.").replace(".", "")
        return 0 if self.name else max(len(significand), 1)
