"""Claims: what a report says of each derivative of a kernel, which its first line shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gradoracle.model.derivative import Derivative
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import PropertyKind
from gradoracle.model.reason import Reason
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import BROKEN, Report, Status, Verdict

CLAIMED, OFFERED, NOT_CLAIMED = "claimed", "judged if offered", "not claimed"  # of a kernel, before it is judged


class Mark(str, Enum):
    """HOLDS, FAILS: some property of the derivative holds and none is violated; one is violated, and that counts.

    NOTED: one is violated, which does not count. OPEN: nothing decided it, or nothing that compares it with the truth
    did. ABSENT: it is not claimed or not offered.
    """

    HOLDS = "✓"
    FAILS = "✗"
    NOTED = "!"
    OPEN = "?"
    ABSENT = "-"


@dataclass(frozen=True)
class Standing:
    """What is known of one derivative of a kernel: a mark, and a word or two where the mark does not say it all."""

    mark: Mark
    words: str = ""

    def __str__(self) -> str:
        return f"{self.mark.value} {self.words}".rstrip()


def claimed(kernel: Kernel) -> dict[str, str]:
    """By derivative, whether a kernel claims it, or whether it is judged all the same where it is offered."""
    judged = [each for each in Derivative if kernel.is_judged(each)]
    known = {each: CLAIMED if kernel.is_claimed(each) else OFFERED for each in judged}
    return {each.value: known.get(each, NOT_CLAIMED) for each in Derivative}


def standings(report: Report, kernel: str) -> dict[Derivative, Standing]:
    """What a report says of the derivatives of a kernel over all its dtypes."""
    own = [verdict for verdict in report.verdicts if verdict.kernel == kernel]
    return {each: _standing(report, each, own, report.claims.get(kernel, {})) for each in Derivative}


def line(report: Report, kernel: str) -> str:
    """The derivatives of a kernel in one line: ``forward ✓  VJP ✗ wrong  JVP - not offered  HVP ! silently zero``."""
    shown = {each: each.value if each is Derivative.FORWARD else each.name for each in Derivative}
    return "  ".join(f"{shown[each]} {standing}" for each, standing in standings(report, kernel).items())


def _standing(
    report: Report, derivative: Derivative, verdicts: Sequence[Verdict], claims: Mapping[str, str]
) -> Standing:
    broken = [each for each in verdicts if each.status in BROKEN and derivative in each.about]
    counting = {
        each.severity for each in broken if each.counts(report.fail_on) and not _of_others(each, claims, derivative)
    }
    if counting:
        lesser = {Severity.PRECISION, Severity.ROBUSTNESS}
        known = "precision" if Severity.PRECISION in counting else "robustness"
        return Standing(Mark.FAILS, known if counting <= lesser else "wrong")
    if broken:
        if all(each.severity is Severity.PRECISION for each in broken):
            return Standing(Mark.NOTED, "precision lost")
        silent = any(each.kind is PropertyKind.SUPPORT and each.derivative is derivative for each in broken)
        return Standing(Mark.NOTED, "silently zero" if silent else "wrong, not claimed")
    if claims.get(derivative.value) == NOT_CLAIMED:
        return Standing(Mark.ABSENT, "not claimed")
    about = [each for each in verdicts if each.derivative is derivative and each.kind is not PropertyKind.SUPPORT]
    if any(each.is_open for each in about):
        return Standing(Mark.OPEN, "undecided")
    if any(each.status is Status.HOLDS for each in about):
        compared = [each for each in about if each.kind is PropertyKind.ORACLE]  # with the truth
        decided = not compared or any(each.status is Status.HOLDS for each in compared)
        return Standing(Mark.HOLDS) if decided else Standing(Mark.OPEN, "undecided")
    if any(each.why in (Reason.NO_DERIVATIVE, Reason.DETACHED) for each in about):
        return Standing(Mark.ABSENT, "not offered")
    if any(each.status is Status.REFUSED for each in about):
        return Standing(Mark.ABSENT, "refused")
    return Standing(Mark.OPEN, "not checked")


def _of_others(verdict: Verdict, claims: Mapping[str, str], derivative: Derivative) -> bool:
    """Whether a verdict is wrong for other derivatives, which the kernel claims, as it does not claim this one."""
    return verdict.severity is Severity.WRONG and len(verdict.about) > 1 and claims.get(derivative.value) == OFFERED
