"""Comparison: what a gate says of a kernel beside its base, line by line."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Weight(str, Enum):
    """What a line does to the gate: red closes it, an open question keeps it from being green, a note does neither."""

    RED = "red"
    OPEN = "open"
    NOTE = "note"


class Kind(str, Enum):
    """What a line is about."""

    VIOLATED = "violated"  # a law that held
    UNCHECKED = "no longer checked"
    ACCURACY = "accuracy"
    JUDGE = "judge"  # a definition, contract, domain or law is another one
    KNOWN = "known failure"
    BASE = "base"  # there is nothing to compare with, or it cannot be used
    SPEED = "speed"


@dataclass(frozen=True)
class Line:
    """One thing that a gate says.

    Attributes:
        kind: what it is about.
        weight: what it does to the gate.
        text: one sentence.
        kernel: that it is about, and ``law`` and ``dtype``; "" for all.
        case: one that shows it.
    """

    kind: Kind
    weight: Weight
    text: str
    kernel: str = ""
    law: str = ""
    dtype: str = ""
    case: str = ""


@dataclass
class Comparison:
    """A kernel compared with its base.

    Attributes:
        base: what it was compared with, in words, such as "1a2b3c4 (main)".
        lines: all that there is to say.
        files: of the kernel, those that differ from the base's.
        unchanged: whether the kernel is that of the base, file by file, and was not checked for that.
    """

    base: str
    lines: list[Line] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    unchanged: bool = False

    def of(self, weight: Weight) -> list[Line]:
        """The lines of one weight."""
        return [line for line in self.lines if line.weight is weight]
