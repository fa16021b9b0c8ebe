"""Subject: one target of a gate, as both sides have it, and what is said of it so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradoracle.gate.snapshot import Snapshot
from gradoracle.model.comparison import Kind, Line, Weight
from gradoracle.project.config import Entry
from gradoracle.project.import_closure import differing
from gradoracle.project.settings import Setting

BASE, CHANGE = "the base", "the change"


@dataclass
class Subject:
    """One target.

    Attributes:
        name: of the config, or the TARGET.
        base, head: as each side has it; None where it does not.
        digests: of the files that the base and the change are made of.
        settings: that the base and the change are checked with.
        lines: what is said of it.
        is_judged_by_base: whether the base's judge holds: nobody answers for another.
        has_base: whether there is a base to compare with, and it can be read.
        faults: gradoracle's own, in sentences.
        is_stopped: whether the change cannot be checked.
    """

    name: str
    base: Entry | None
    head: Entry | None
    digests: tuple[dict[str, str], dict[str, str]]
    settings: tuple[dict[str, Setting], dict[str, Setting]]
    lines: list[Line] = field(default_factory=list)
    is_judged_by_base: bool = True
    has_base: bool = True
    faults: list[str] = field(default_factory=list)
    is_stopped: bool = False

    @property
    def files(self) -> list[str]:
        """The files that differ, where both sides have the target."""
        return [] if self.base is None or self.head is None else differing(*self.digests)

    def cannot(self, where: str, snapshot: Snapshot) -> None:
        """Say it where a side gave no snapshot: red where it is the change, an open question where it is the base."""
        if not snapshot.error:
            return
        if snapshot.is_fault:
            self.faults.append(f"{self.name}, {where}: {snapshot.error}")
        if where == BASE:
            self.has_base = False
        red = where == CHANGE and not (snapshot.is_fault or snapshot.is_lost)
        self.is_stopped = self.is_stopped or where == CHANGE
        hint = "; compare with a saved baseline instead (--baseline FILE)" if where == BASE else ""
        text = f"{where} cannot be checked: {snapshot.error}{hint}"
        self.lines.append(Line(Kind.BASE, Weight.RED if red else Weight.OPEN, text))
