"""Verdict: one property on one kernel and dtype. Report: all verdicts of a run, and what it covered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gradoracle.model import exit_codes
from gradoracle.model.comparison import Comparison, Weight
from gradoracle.model.derivative import Derivative
from gradoracle.model.explanation import PrecisionLoss, WrongConstant
from gradoracle.model.fault import Fault, VerdictKey
from gradoracle.model.finding import NO_EDIT, EditedDefinition, Finding, Outcome
from gradoracle.model.location import Location
from gradoracle.model.property import PropertyKind
from gradoracle.model.reason import Reason
from gradoracle.model.serialize import NAMED_PROPERTY
from gradoracle.model.severity import Severity
from gradoracle.model.statistics import Measurements


class Status(str, Enum):
    """The status of a property on a kernel; of several cases, the first in this order.

    ERROR: gradoracle itself failed while judging, which says nothing about the kernel.
    """

    CRASHED = "crashed"
    VIOLATED = "violated"
    ERROR = "error"
    REFUSED = "refused"
    NOT_CHECKED = "not checked"
    HOLDS = "holds"


BROKEN = (Status.VIOLATED, Status.CRASHED)  # by the kernel
FAILING = (*BROKEN, Status.ERROR)  # reported with a case
FEWEST_JUDGED = 5  # cases of a kernel and dtype (or as many as were asked for) below which a run is inconclusive


@dataclass(frozen=True)
class Counterexample:
    """The smallest case found on which a property is violated or the kernel crashes.

    Attributes:
        case: one line that replays anywhere.
        findings: the findings of each tensor of the case.
        shrunk_from: the first such case, where shrinking found a smaller one.
        shrink_note: why the case may not be the smallest.
        message: what the process did (a crash), what explains the violation, or what was raised (an error).
        command: reproduces it where replaying the case does not.
        pooled: whether only all cases of a dtype together show it, each being within its own budget; ``case`` is the
            first of them.
        first_findings: the violated ones on ``shrunk_from``, whose sizes show where wrong elements lie; empty where
            nothing was shrunk.
        edited_definition: an edited definition that gives what the kernel gave on several cases, where one was found.
        further: the violated ones on the cases with the most elements.
        trace: the traceback of an error.
        preset: another precision contract under which the property would hold.
        unexplained: by how much it exceeds what the nearest preset explains, where none of the dtype explains it.
        severity: the severity of this case, where that was asked for.
        undecided: why it is not known whether it stays with every float in float64.
        loss: the statement at which precision is lost, where one was found.
        constant: whose value explains what is wrong, where one was found.
        crashed_in: the derivative whose call crashed, where one is known.
    """

    case: str
    findings: tuple[Finding, ...]
    shrunk_from: str = ""
    shrink_note: str = ""
    message: str = ""
    command: str = ""
    pooled: bool = False
    first_findings: tuple[Finding, ...] = ()
    edited_definition: EditedDefinition = NO_EDIT
    further: tuple[Finding, ...] = ()
    trace: str = ""
    preset: str = ""
    unexplained: str = ""
    severity: Severity | None = None
    undecided: str = ""
    loss: PrecisionLoss | None = None
    constant: WrongConstant | None = None
    crashed_in: Derivative | None = None


@dataclass
class Verdict:
    """One property on one kernel and dtype, over all its cases."""

    property_name: str = field(metadata=NAMED_PROPERTY)
    kernel: str
    dtype: str
    status: Status
    cases_held: int = 0
    cases_violated: int = 0
    cases_crashed: int = 0
    cases_error: int = 0
    cases_refused: int = 0
    cases_not_checked: int = 0
    reasons: dict[str, int] = field(default_factory=dict)  # why not checked or refused -> cases
    worst_error: float = 0.0  # largest error / budget over all cases
    worst_in_sigma: float = 0.0
    sensitivity: float | None = None  # median over cases and tensors of budget / |truth|
    counterexample: Counterexample | None = None
    notes: list[str] = field(default_factory=list)  # such as accuracy given away
    statement: str = ""  # of the property, in a sentence
    rank: int = 0  # of the property: of several that a fault violates, the highest leads
    tensors_compared: int = 0  # over all cases, those that were decided
    kind: PropertyKind = PropertyKind.RELATION  # what the property compares
    cause: str = ""  # that the property points at where it alone is violated
    undecided: dict[str, str] = field(default_factory=dict)  # of a decisive property: tensor -> why no case decided it
    severity: Severity | None = None  # of its gravest violating case, where that was asked for; a crash is wrong
    severity_note: str = ""  # why it is not known whether the violation stays with every float in float64
    keeps: str = ""  # where precision is lost: the strongest preset that explains all violating cases; "" if none
    contract: str = ""  # the preset that it is judged under
    declared: bool = True  # whether the kernel declares it
    derivative: Derivative | None = None  # that the property is about
    why: Reason | None = None  # the kind of the first of ``reasons``

    def counts(self, fail_on: Severity | None) -> bool:
        """Whether it makes a run exit with 1: what is at least as grave as ``fail_on``.

        None: what is wrong, and every violation by a kernel that declares its contract, unless it is in a derivative
        that the kernel does not claim. What is undecided is wrong or precision, and counts where both do.
        """
        if self.status not in BROKEN:
            return False
        severity = self.severity or Severity.WRONG
        if severity is Severity.UNDECIDED:
            severity = Severity.PRECISION
        if fail_on is None and severity is Severity.ROBUSTNESS and self.about:
            return False  # it is not claimed
        return self.declared or severity is Severity.WRONG if fail_on is None else severity.rank <= fail_on.rank

    @property
    def key(self) -> VerdictKey:
        """Which verdict it is."""
        return VerdictKey(self.property_name, self.kernel, self.dtype)

    @property
    def about(self) -> frozenset[Derivative]:
        """The derivatives that violate it, by tensor or by crash; that of its property where none is known."""
        known = {self.derivative}
        if (shown := self.counterexample) is not None:
            violated = {each.about for each in shown.findings if each.outcome is Outcome.VIOLATED}
            known = {*violated, shown.crashed_in} - {None} or known
        return frozenset(each for each in known if each is not None)

    @property
    def is_open(self) -> bool:
        """Whether it is *not checked* because nobody knows whether what violates it is wrong."""
        return self.status is Status.NOT_CHECKED and self.severity is Severity.UNDECIDED


@dataclass
class Report:
    """The result of a run. Every output format is a view of it and recomputes nothing."""

    target: str
    family: str
    kernels: list[str]
    device: str
    seed: int
    contracts: Mapping[str, str]  # dtype -> preset
    environment: Mapping[str, str]
    verdicts: list[Verdict] = field(default_factory=list)
    goals: dict[str, int] = field(default_factory=dict)  # coverage goal -> cases that meet it
    goals_wanted: dict[str, int] = field(default_factory=dict)  # coverage goal -> the least number of cases
    cases_planned: int = 0
    cases_run: int = 0
    seconds: float = 0.0
    refusals: dict[str, dict[str, int]] = field(default_factory=dict)  # message -> {"dtype=..": n, "layout=..": n}
    notes: list[str] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)  # what should have been checked and was not, a sentence each
    interrupted: str = ""  # why the run stopped early, if it did
    cases_judged: int = 0  # on which some property held, was violated or crashed
    cases_alarming: int = 0  # on which some property was violated or crashed
    locations: dict[str, Location] = field(default_factory=dict)  # kernel -> where it is written in the working tree
    comparison: Comparison | None = None  # with the base, in a gate
    measurements: Measurements | None = None  # plotted, not judged
    faults: list[Fault] = field(default_factory=list)  # the failing verdicts, grouped by cause
    planned: dict[str, int] = field(default_factory=dict)  # "kernel in dtype" -> cases
    judged: dict[str, int] = field(default_factory=dict)  # "kernel in dtype" -> those with an answer
    stopped: dict[str, float] = field(default_factory=dict)  # "kernel: call" running when time was up -> seconds
    seconds_compiling: float = 0.0  # summed over processes, where kernels are compiled
    longest_compilation: float = 0.0  # seconds of the longest one
    claims: dict[str, dict[str, str]] = field(default_factory=dict)  # kernel -> derivative -> as in ``model.claims``
    narrowed: dict[str, str] = field(default_factory=dict)  # kernel -> the dims whose sizes it supports in part
    fail_on: Severity | None = None  # the least severity for which the exit code is 1; None: as ``Verdict.counts``

    @property
    def properties_checked(self) -> int:
        """How many properties held, were violated or crashed on at least one case."""
        return len({v.property_name for v in self.verdicts if v.status in (Status.HOLDS, *BROKEN)})

    @property
    def errors(self) -> list[Verdict]:
        """Those on which gradoracle itself failed."""
        return [verdict for verdict in self.verdicts if verdict.status is Status.ERROR]

    def inconclusive(self, lines: bool = True) -> list[str]:
        """Why a run without violations does not exit with 0; empty where nothing stands against it.

        ``lines``: whether to include the open questions of a comparison, which views print as its lines.
        """
        reasons = [line.text for line in self.comparison.of(Weight.OPEN)] if self.comparison and lines else []
        if self.comparison is not None and not self.verdicts:
            return reasons
        if not self.verdicts or all(v.status in (Status.REFUSED, Status.NOT_CHECKED) for v in self.verdicts):
            reasons.append("nothing was checked")
        for name, expected in self.goals_wanted.items():
            if self.goals.get(name, 0) < expected:
                reasons.append(f"coverage goal {name!r} has {self.goals.get(name, 0)} cases, {expected} expected")
        for name, planned in self.planned.items() if self.cases_run < self.cases_planned else ():
            if (judged := self.judged.get(name, 0)) < (least := min(planned, FEWEST_JUDGED)):
                reasons.append(f"{name} was judged on {judged} of {planned} cases, at least {least} expected")
        reasons += [
            f"{name} was still running at the end, after {seconds:.0f} s" for name, seconds in self.stopped.items()
        ]
        if self.interrupted:
            reasons.append(self.interrupted)
        return reasons + self.unmet

    @property
    def exit_code(self) -> int:
        """The first of: 1 a violation that counts, in a gate a regression; 3 an internal error; 4 inconclusive; 0."""
        if self.comparison is not None:
            is_broken = bool(self.comparison.of(Weight.RED))
        else:
            is_broken = any(verdict.counts(self.fail_on) for verdict in self.verdicts)
        if is_broken:
            return exit_codes.VIOLATED
        if self.errors:
            return exit_codes.ERROR
        return exit_codes.INCONCLUSIVE if self.inconclusive() else exit_codes.HOLDS


def exit_code(reports: Sequence[Report]) -> int:
    """The exit code of several reports: the gravest of theirs; without a report inconclusive."""
    codes = {report.exit_code for report in reports}
    gravest_first = (exit_codes.VIOLATED, exit_codes.ERROR, exit_codes.INCONCLUSIVE)
    if not codes:
        return exit_codes.INCONCLUSIVE
    return next((code for code in gravest_first if code in codes), exit_codes.HOLDS)
