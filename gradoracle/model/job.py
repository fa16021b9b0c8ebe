"""Job: one case to be judged by some properties, and its result. Plain values, which any process can be sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.explanation import PrecisionLoss, WrongConstant
from gradoracle.model.finding import EditedDefinition, Finding
from gradoracle.model.reason import Reason
from gradoracle.model.serialize import NAMED_PROPERTY
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Status

Phase = Callable[["str | None", "float | None"], None]  # announces what a process does now, and for how long at most
Why = tuple[Reason, str]  # a kind of reason, and the sentence


@dataclass(frozen=True)
class Job:
    """One case to judge by the properties named.

    Attributes:
        barred: calls that must not be made, by name without the variant, and why.
        patience: how many times its usual limit a call may take.
        with_severity: whether to find the severity of a violation, and a preset that explains lost precision.
        known_wrong: properties that an earlier case has shown to be wrong: no later severity is graver.
        located: whether to find the statement at which precision is lost, or the constant that is wrong, too.
        widened: whether to judge the kernel widened, on the CPU.
        edited: whether to find edited definitions that give what the kernel gave.
        calls: derivatives that are evaluated first, since a property asks what their calls did.
        seconds: the time after which no further property is begun.
    """

    kernel: str
    case: Case
    properties: tuple[str, ...]
    barred: Mapping[str, Why] = field(default_factory=dict)
    patience: float = 1.0
    with_severity: bool = False
    known_wrong: frozenset[str] = frozenset()
    located: bool = False
    widened: bool = False
    edited: bool = False
    calls: tuple[Derivative, ...] = ()
    seconds: float | None = None


@dataclass(frozen=True)
class DefinitionJob:
    """A case on which only the definition is tried, before results that would be worthless if it fails."""

    kernel: str
    case: Case


@dataclass(frozen=True)
class Rehearsal:
    """A case whose kernel calls are made without launching a kernel, to see which compilations they need."""

    kernel: str
    case: Case
    properties: tuple[str, ...]


@dataclass(frozen=True)
class Compilation:
    """One kernel for one specialisation, as Triton itself writes it (``JITFunction.preload``).

    Attributes:
        module: the module of the kernel.
        function: its qualified name there.
        specialisation: types, constants and options, as JSON.
    """

    module: str
    function: str
    specialisation: str

    @property
    def phase(self) -> str:
        """What a process that makes it does."""
        return f"compiling {self.function}"


@dataclass(frozen=True)
class EndedProcess:
    """A call that ended the process of its host.

    Attributes:
        call: its name, without what is done to the sample.
        kind: "time limit", "signal", "memory", "exit", "lost" or "malformed".
    """

    call: str
    kind: str


@dataclass(frozen=True)
class PropertyResult:
    """The result of one property on one case.

    Attributes:
        property_name: its name.
        status: what it came to.
        findings: one for each check of a tensor.
        reason: why it was refused, not checked, crashed or failed, in words.
        why: the kind of that reason.
        trace: the traceback of an internal error.
        preset: another preset that explains the violation.
        unexplained: how far the violation exceeds the nearest preset, where none explains it.
        severity: of a violation, where it was asked for.
        crashed_in: the derivative whose call crashed.
        undecided: why it is not known whether the violation stays with every float in float64.
        loss: where precision is lost.
        constant: that explains what is wrong.
        edited: definitions that give what the kernel gave; None where the case cannot tell.
    """

    property_name: str = field(metadata=NAMED_PROPERTY)
    status: Status
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    why: Reason | None = None
    trace: str = ""
    preset: str = ""
    unexplained: str = ""
    severity: Severity | None = None
    crashed_in: Derivative | None = None
    undecided: str = ""
    loss: PrecisionLoss | None = None
    constant: WrongConstant | None = None
    edited: tuple[EditedDefinition, ...] | None = None


@dataclass(frozen=True)
class CaseResult:
    """The results of all properties of a job.

    Attributes:
        compiling: seconds spent compiling kernels.
        longest_compilation: seconds of the longest of these.
        called: functions that ran, as ``model.call.Facts`` names them.
        ended: the calls that ended the process of the kernel.
    """

    kernel: str
    case: Case
    results: tuple[PropertyResult, ...]
    compiling: float = 0.0
    longest_compilation: float = 0.0
    called: tuple[str, ...] = ()
    ended: tuple[EndedProcess, ...] = ()
