"""Verdict: what is known of one law on one kernel and dtype. Report: all verdicts of a run and what it covered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gradoracle.model.comparison import Comparison, Weight
from gradoracle.model.fault import Fault
from gradoracle.model.finding import NO_LIKENESS, Finding, Likeness
from gradoracle.model.location import Location
from gradoracle.model.property import PropertyKind
from gradoracle.model.shard import Shard
from gradoracle.model.statistics import Measurements


class Status(str, Enum):
    """What can be said of a law and a kernel, worst first where they meet.

    ERROR: gradoracle itself failed while it judged; that says nothing of the kernel.
    """

    CRASHED = "crashed"
    VIOLATED = "violated"
    ERROR = "error"
    REFUSED = "refused"
    NOT_CHECKED = "not checked"
    HOLDS = "holds"


BROKEN = (Status.VIOLATED, Status.CRASHED)  # by the kernel
FAILING = (*BROKEN, Status.ERROR)  # what a report shows a case of
FEWEST_JUDGED = 5  # cases of a kernel and dtype, where so many were asked for: below it a run is inconclusive


@dataclass(frozen=True)
class Counterexample:
    """The smallest case found on which a law is violated or the kernel crashes, and what it shows.

    Attributes:
        case: one line that replays anywhere.
        findings: what the law says of each tensor of the case.
        shrunk_from: the first such case, where shrinking found a smaller one.
        shrink_note: why the case may not be the smallest.
        message: for a crash what the process did; for a violation what explains it; for an error what was raised.
        command: what shows it again where the case alone does not.
        pooled: whether all cases of a dtype show it together, each being within its own budget; ``case`` is the first.
        first_findings: what the law found wrong on ``shrunk_from``, whose sizes show where wrong elements lie; empty
            where nothing was shrunk.
        formula: which other formula gives what the kernel gave, where one was found.
        further: what the law found wrong on those of its cases that have the most elements.
        trace: of an error, where it was raised.
        preset: another precision contract under which a violation would hold.
    """

    case: str
    findings: tuple[Finding, ...]
    shrunk_from: str = ""
    shrink_note: str = ""
    message: str = ""
    command: str = ""
    pooled: bool = False
    first_findings: tuple[Finding, ...] = ()
    formula: Likeness = NO_LIKENESS
    further: tuple[Finding, ...] = ()
    trace: str = ""
    preset: str = ""


@dataclass
class Verdict:
    """One law on one kernel and dtype, over all its cases."""

    law: str
    kernel: str
    dtype: str
    status: Status
    cases_held: int = 0
    cases_violated: int = 0
    cases_crashed: int = 0
    cases_error: int = 0
    cases_refused: int = 0
    cases_not_checked: int = 0
    cases_not_applicable: int = 0
    reasons: dict[str, int] = field(default_factory=dict)  # why not checked or refused -> cases
    worst_error: float = 0.0  # largest error / budget over all cases
    worst_in_sigma: float = 0.0
    sensitivity: float | None = None  # median over cases and tensors of budget / |truth|
    counterexample: Counterexample | None = None
    notes: list[str] = field(default_factory=list)  # such as accuracy given away
    statement: str = ""  # the law in a sentence
    rank: int = 0  # of the law: where one bug breaks several, the highest leads
    tensors_compared: int = 0  # over all cases: those of which it was decided whether they are right
    kind: PropertyKind = PropertyKind.RELATION  # what the law compares
    cause: str = ""  # what the law points at where it is violated alone
    undecided: dict[str, str] = field(default_factory=dict)  # tensor that no case decided, of a decisive law -> why


@dataclass
class Report:
    """Everything a run found out. Every output format is a view of this and recomputes nothing."""

    target: str
    family: str
    kernels: list[str]
    device: str
    seed: int
    contracts: Mapping[str, str]  # dtype -> preset
    environment: Mapping[str, str]
    verdicts: list[Verdict] = field(default_factory=list)
    situations: dict[str, int] = field(default_factory=dict)  # situation -> cases that are in it
    situations_wanted: dict[str, int] = field(default_factory=dict)  # situation -> the least number of cases expected
    cases_planned: int = 0
    cases_run: int = 0
    seconds: float = 0.0
    refusals: dict[str, dict[str, int]] = field(default_factory=dict)  # message -> {"dtype=..": n, "layout=..": n}
    notes: list[str] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)  # what should have been checked and was not, a sentence each
    interrupted: str = ""  # why the run stopped early, if it did
    cases_judged: int = 0  # on which some law was held, violated or crashed
    cases_alarming: int = 0  # on which some law was violated or crashed
    locations: dict[str, Location] = field(default_factory=dict)  # kernel -> where it is written in the working tree
    comparison: Comparison | None = None  # with a base, where a gate made the report
    measurements: Measurements | None = None  # that are drawn and not judged
    faults: list[Fault] = field(default_factory=list)  # the failing verdicts, grouped by what they have in common
    shard: Shard | None = None  # what merging needs, where the run is one part of several
    planned: dict[str, int] = field(default_factory=dict)  # "kernel in dtype" -> cases
    judged: dict[str, int] = field(default_factory=dict)  # of these, on which a property said something of the kernel
    stopped: dict[str, float] = field(default_factory=dict)  # "kernel: call" that ran when the time was up -> seconds
    seconds_compiling: float = 0.0  # of all processes together, where kernels are compiled

    @property
    def laws_checked(self) -> int:
        """How many distinct laws held or were violated on at least one case."""
        return len({v.law for v in self.verdicts if v.status in (Status.HOLDS, *BROKEN)})

    @property
    def errors(self) -> list[Verdict]:
        """Those that gradoracle itself failed to give."""
        return [verdict for verdict in self.verdicts if verdict.status is Status.ERROR]

    def inconclusive(self, lines: bool = True) -> list[str]:
        """Reasons why a run without violations is still not green; empty where it is.

        ``lines``: with those that the lines of a comparison say themselves.
        """
        reasons = [line.text for line in self.comparison.of(Weight.OPEN)] if self.comparison and lines else []
        if self.comparison is not None and not self.verdicts:
            return reasons
        if not self.verdicts or all(v.status in (Status.REFUSED, Status.NOT_CHECKED) for v in self.verdicts):
            reasons.append("nothing was checked")
        for name, expected in self.situations_wanted.items():
            if self.situations.get(name, 0) < expected:
                reasons.append(f"situation {name!r} has {self.situations.get(name, 0)} cases, {expected} expected")
        for name, planned in self.planned.items() if self.cases_run < self.cases_planned else ():
            if (judged := self.judged.get(name, 0)) < (least := min(planned, FEWEST_JUDGED)):
                reasons.append(f"{name} was judged on {judged} of {planned} cases, at least {least} expected")
        reasons += [
            f"{name} still ran after {seconds:.0f} s, when the time was up" for name, seconds in self.stopped.items()
        ]
        if self.interrupted:
            reasons.append(self.interrupted)
        return reasons + self.unmet

    @property
    def exit_code(self) -> int:
        """The first of: 1 violated or crashed, in a gate a red line; 3 gradoracle's own error; 4 inconclusive; 0."""
        if self.comparison is not None:
            is_broken = bool(self.comparison.of(Weight.RED))
        else:
            is_broken = any(verdict.status in BROKEN for verdict in self.verdicts)
        return 1 if is_broken else 3 if self.errors else 4 if self.inconclusive() else 0
