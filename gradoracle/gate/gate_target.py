"""Gate target: a target as both sides have it, and what is known of it so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradoracle.gate.answer import Answer
from gradoracle.model.comparison import Kind, Line, Weight
from gradoracle.project.config import Entry, Setting
from gradoracle.project.import_closure import differing


@dataclass
class GateTarget:
    """One target.

    Attributes:
        name: in the configuration, or the TARGET.
        base, head: its entry on each side; None where a side does not have it.
        digests: of its files in the base and in the change.
        settings: that the base and the change are checked with.
        lines: to report.
        is_judged_by_base: whether the base's judge holds, since no other one is acknowledged.
        has_base: whether there is a base that can be checked.
        faults: errors of gradoracle itself, in sentences.
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

    def base_failed(self, answer: Answer) -> None:
        """Report that the base cannot be checked, if so: the gate is then inconclusive."""
        if answer.error:
            self.has_base = False
            self._failed("the base", answer, Weight.OPEN, "; compare with a saved baseline instead (--baseline FILE)")

    def change_failed(self, answer: Answer) -> None:
        """Report that the change cannot be checked, if so: a regression, unless the kernel is not the cause."""
        if answer.error:
            self.is_stopped = True
            self._failed("the change", answer, Weight.OPEN if answer.is_fault or answer.is_lost else Weight.RED)

    def _failed(self, side: str, answer: Answer, weight: Weight, hint: str = "") -> None:
        if answer.is_fault:
            self.faults.append(f"{self.name}, {side}: {answer.error}")
        self.lines.append(Line(Kind.BASE, weight, f"{side} cannot be checked: {answer.error}{hint}"))
