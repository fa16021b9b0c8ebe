"""Snapshot: what a gate knows about one target in one tree: settings, what judges it, the outcome of every case."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gradoracle.model.fault import VerdictKey
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Report, Status
from gradoracle.project.config import Setting

UNDECIDED = (Status.REFUSED, Status.NOT_CHECKED, Status.ERROR)
Errors = dict[str, dict[str, float]]  # property -> tensor -> error


@dataclass(frozen=True)
class OnCase:
    """Outcome of one case.

    Attributes:
        kernel: name of the kernel.
        dtype: of the case.
        properties: property -> its status.
        reasons: property -> why it was not decided, a sentence.
        why: property -> the kind of that reason, where it has one.
        rms: root mean square of the errors in sigma, where a property compares with the truth.
        worst: largest error, in sigma or else in budgets, where a property is violated and pools nothing.
        called: functions of the tree that ran, as ``called.Called`` names them; empty on a GPU.
    """

    kernel: str
    dtype: str
    properties: dict[str, Status]
    reasons: dict[str, str] = field(default_factory=dict)
    why: dict[str, Reason] = field(default_factory=dict)
    rms: Errors = field(default_factory=dict)
    worst: Errors = field(default_factory=dict)
    called: tuple[str, ...] = ()

    def merged(self, other: OnCase) -> OnCase:
        """The outcome of two runs of this case, by different properties."""
        return replace(
            self,
            properties=self.properties | other.properties,
            reasons=self.reasons | other.reasons,
            why=self.why | other.why,
            rms=self.rms | other.rms,
            worst=self.worst | other.worst,
            called=tuple(sorted({*self.called, *other.called})),
        )


@dataclass(frozen=True)
class Piece:
    """One thing that judges a target.

    Attributes:
        text: its fingerprint, or its content where that is short.
        kernel: the kernel that it is declared for; "" for what judges all kernels of the target.
    """

    text: str
    kernel: str = ""


@dataclass
class Snapshot:
    """One target, such as a kernel of the project's configuration.

    Attributes:
        target: as ``gradoracle check`` takes it, relative to the project's folder.
        settings: it was checked with, by their names on the command line.
        files: digests of the target's files in the working tree.
        pieces: what judges it, by name.
        cases: outcome of each case, by case line.
        pooled: verdicts that only all cases together violate.
        measured: properties that measure errors in sigma on every case.
        missing: kernels and block configurations that the judge has and the target's own project lacks.
        is_whole: whether every planned case was judged.
        report: of the check; None in a baseline.
        error: why none of the above is known, one sentence.
        is_fault: whether the error is a bug of gradoracle.
        is_lost: whether the error says nothing about the kernel, as when the system killed the process.
    """

    target: str
    settings: dict[str, Setting] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    pieces: dict[str, Piece] = field(default_factory=dict)
    cases: dict[str, OnCase] = field(default_factory=dict)
    pooled: list[VerdictKey] = field(default_factory=list)
    measured: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    is_whole: bool = False
    report: Report | None = None
    error: str = ""
    is_fault: bool = False
    is_lost: bool = False

    def merged(self, other: Snapshot) -> Snapshot:
        """What two runs of this target found, on any cases and by any properties."""
        cases = dict(self.cases)
        for line, case in other.cases.items():
            cases[line] = cases[line].merged(case) if line in cases else case
        pooled = list(dict.fromkeys((*self.pooled, *other.pooled)))
        return replace(self, cases=cases, pooled=pooled, is_whole=self.is_whole and other.is_whole)
