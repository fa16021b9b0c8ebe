"""Job: one case to be judged by some properties; and what comes back. Plain values, which any process can be sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradoracle.model.case import Case
from gradoracle.model.finding import NO_LIKENESS, Finding, Likeness
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status

Why = tuple[Reason, str]  # a kind of reason, and the sentence


@dataclass(frozen=True)
class Job:
    """One case to examine by the laws named.

    ``crashes``: calls that are known to crash on it, and how. ``barred``: calls that must not be made, by their names
    without a variant's, and why; "*" bars all.
    """

    kernel: str
    case: Case
    laws: tuple[str, ...]
    crashes: Mapping[str, Why] = field(default_factory=dict)
    barred: Mapping[str, Why] = field(default_factory=dict)
    presets: bool = False  # also say which other preset would explain a violation
    formulas: bool = False  # also say which other formula would
    seconds: float | None = None  # after which no further law is begun


@dataclass(frozen=True)
class Trial:
    """A case on which the definition alone is tried, before there are results that it would make worthless."""

    kernel: str
    case: Case


@dataclass(frozen=True)
class LawResult:
    """What one law says of one case."""

    law: str
    status: Status
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    why: Reason | None = None  # of what kind the reason is
    trace: str = ""  # of an error of gradoracle's own, where it was raised
    preset: str = ""  # another preset under which the violation would be explained
    formula: Likeness = NO_LIKENESS  # another formula that gives what the kernel gave


@dataclass(frozen=True)
class CaseResult:
    """What all laws say of one case; ``lost`` names the call with which the device was lost, if it was.

    ``compiling``: seconds that kernels were compiled in. ``called``: functions that ran, as ``called.Called`` has them.
    """

    kernel: str
    case: Case
    results: tuple[LawResult, ...]
    lost: str | None = None
    compiling: float = 0.0
    called: tuple[str, ...] = ()
