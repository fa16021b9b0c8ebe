"""Precision loss: the statement of a kernel whose rounding brings an error back that is gone when it is widened."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Statement:
    """A line of a kernel or of its wrapper.

    Attributes:
        file: its path, as Python compiled it.
        line: from 1.
        function: the name of the function that it stands in.
        error: the largest error / budget with this statement alone rounding as it is written.
    """

    file: str
    line: int
    function: str
    error: float

    @property
    def source(self) -> str:
        """The text of the line, without indentation; "" where the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()


@dataclass(frozen=True)
class PrecisionLoss:
    """Where precision is lost.

    Attributes:
        statement: that it is lost at.
        source: its text.
        others: further statements each of which alone breaks the contract, by falling error.
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
