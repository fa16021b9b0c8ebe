"""Comparison: what a gate reports of a kernel compared with its base, line by line."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from gradoracle.model.serialize import NAMED_PROPERTY


class Weight(str, Enum):
    """What a line does to the gate: red is a regression, an open question makes it inconclusive, a note neither."""

    RED = "red"
    OPEN = "open"
    NOTE = "note"


class Kind(str, Enum):
    """What a line is about."""

    VIOLATED = "violated"  # a property that held
    UNCHECKED = "no longer checked"
    ACCURACY = "accuracy"
    JUDGE = "judge"  # a definition, contract, domain or property has changed
    KNOWN = "known failure"
    BASE = "base"  # there is nothing to compare with, or it cannot be used


REGRESSIONS = (Kind.VIOLATED, Kind.UNCHECKED, Kind.ACCURACY)  # of a kernel: red lines at which --fail-fast stops


@dataclass(frozen=True)
class Line:
    """One line of a gate.

    Attributes:
        kind: what it is about.
        weight: what it does to the gate.
        text: one sentence.
        kernel: the one concerned, like ``property_name`` and ``dtype``; "" for all.
        case: one that shows it.
    """

    kind: Kind
    weight: Weight
    text: str
    kernel: str = ""
    property_name: str = field(default="", metadata=NAMED_PROPERTY)
    dtype: str = ""
    case: str = ""


@dataclass
class Comparison:
    """A kernel compared with its base.

    Attributes:
        base: the base in words, such as "1a2b3c4 (main)".
        lines: the result.
        files: the kernel's files that differ from the base.
        unchanged: whether all its files are those of the base, so that it was not checked.
    """

    base: str
    lines: list[Line] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    unchanged: bool = False

    def of(self, weight: Weight) -> list[Line]:
        """The lines of one weight."""
        return [line for line in self.lines if line.weight is weight]
