"""Snapshot: all that a gate knows of one kernel of one tree: how it was checked, what judged it, and every case."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradoracle.model.verdict import Report
from gradoracle.project.settings import Setting

UNDECIDED = ("refused", "not checked", "error")


@dataclass(frozen=True)
class OnCase:
    """What became of one case.

    Attributes:
        kernel: its name.
        dtype: of the case.
        laws: law -> status, such as "holds".
        reasons: law -> why it was not decided.
        memory: laws for which there was not enough memory, which is the machine's and not the kernel's.
        rms: "law: tensor" -> root mean square of the error in sigma, where a law compares with the truth.
        worst: the same -> the largest error, in sigma or else in budgets, where it is violated and nothing is pooled.
        called: the tree's functions that ran, as ``called.Called`` has them; none on a GPU.
    """

    kernel: str
    dtype: str
    laws: dict[str, str]
    reasons: dict[str, str] = field(default_factory=dict)
    rms: dict[str, float] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    called: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()


@dataclass
class Snapshot:
    """One target, such as a kernel of the project's config.

    Attributes:
        target: as ``gradoracle check`` takes it, from the project's folder.
        settings: that it was checked with, as the command line has them.
        files: of the kernel in the working tree, with their digests.
        pieces: fingerprints of what judges it, by name.
        cases: case line -> what became of it.
        pooled: "law kernel dtype" of verdicts that all cases together violate.
        measured: laws whose errors are measured in sigma on every case.
        missing: kernels and block configurations that the judge has and the kernel's own project lacks.
        is_whole: whether every case that there was to judge was judged.
        report: of the check; None in a baseline.
        error: why there is nothing of the above, in a sentence.
        is_fault: whether the error is gradoracle's own.
        is_lost: whether the error says nothing of the kernel: the system killed the process, say.
    """

    target: str
    settings: dict[str, Setting] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    pieces: dict[str, str] = field(default_factory=dict)
    cases: dict[str, OnCase] = field(default_factory=dict)
    pooled: list[str] = field(default_factory=list)
    measured: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    is_whole: bool = False
    report: Report | None = None
    error: str = ""
    is_fault: bool = False
    is_lost: bool = False
