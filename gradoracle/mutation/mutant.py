"""Mutant: one small mistake planted in one place of a kernel's source, as plain values."""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A module's source with one mistake.

    Attributes:
        module: the module's name, such as ``gradoracle.kernels.lightning.scan``, or a user's file as given.
        operator: the name of the operator that planted it.
        function: the function or ``Class.method`` that contains the mistake.
        line: of the original source, from 1.
        before: the code that was replaced, on one line.
        after: its replacement, on one line; "" where it was dropped.
        occurrence: which of the mutants that differ from it at most in their line, from 0.
        original: the whole source.
        source: the whole source with the mistake.
        cause: what a diagnosis should name, one of ``model.fault.PLANTED``; "" where that is not known.
    """

    module: str
    operator: str
    function: str
    line: int
    before: str
    after: str
    occurrence: int
    original: str
    source: str
    cause: str = ""

    @property
    def key(self) -> str:
        """Ten hex digits that name this mutant for as long as the code around it stays the same; lines may move."""
        parts = (
            self.module.rpartition("/")[2],
            self.operator,
            self.function,
            self.before,
            self.after,
            str(self.occurrence),
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]

    @property
    def top(self) -> str:
        """The name that the function, or the class of the method, has in its module."""
        return self.function.partition(".")[0]

    @property
    def diff(self) -> str:
        """Unified, two lines of context."""
        lines = difflib.unified_diff(
            self.original.splitlines(), self.source.splitlines(), self.module, self.module, n=2, lineterm=""
        )
        return "\n".join(lines)
