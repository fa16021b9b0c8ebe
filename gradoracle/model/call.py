"""Call: what a judge asks the host of a kernel for, and what it replies: plain values and tensors, never an object.

A judge knows truths and never runs a kernel; a host runs kernels and knows no truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

from torch import Tensor

from gradoracle.model.derivative import Derivative
from gradoracle.model.job import Compilation, EndedProcess
from gradoracle.model.wrong_accesses import SourceLine, WrongAccess

Spot = tuple[str, str, int, str]

_DERIVATIVES = frozenset(derivative.value for derivative in Derivative)


class Entry(str, Enum):
    """What a host is asked to compute; a further entry point of a kernel goes by its own name instead."""

    FORWARD = "forward"
    VJP = "vjp"
    JVP = "jvp"
    HVP = "hvp"
    INTEGERS = "integer outputs"
    VJP_TWICE = "vjp twice"
    VJP_IN_THE_SAME_MEMORY = "vjp in the same memory"
    REVERSE_OVER_FORWARD = "reverse over forward"
    FORWARD_OVER_REVERSE = "forward over reverse"
    HVP_OF_SOME_INPUTS = "hvp of some inputs"
    JVP_BY_COTANGENTS = "double backward in the cotangents"
    RAISED = "what it raises"


_OF_SECOND_ORDER = frozenset(
    {
        Entry.HVP.value,
        Entry.REVERSE_OVER_FORWARD.value,
        Entry.FORWARD_OVER_REVERSE.value,
        Entry.HVP_OF_SOME_INPUTS.value,
        Entry.JVP_BY_COTANGENTS.value,
    }
)
WITH_TANGENTS = _OF_SECOND_ORDER | {Entry.JVP.value}
"""The entries that take tangents."""
WITH_COTANGENTS = _OF_SECOND_ORDER | {Entry.VJP.value, Entry.VJP_TWICE.value, Entry.VJP_IN_THE_SAME_MEMORY.value}
"""The entries that take cotangents."""
_OF_ENTRIES = {  # the derivative that a call evaluates whose name is not a derivative's
    Entry.VJP_TWICE.value: Derivative.VJP,
    Entry.VJP_IN_THE_SAME_MEMORY.value: Derivative.VJP,
    Entry.REVERSE_OVER_FORWARD.value: Derivative.HVP,
    Entry.FORWARD_OVER_REVERSE.value: Derivative.HVP,
    Entry.HVP_OF_SOME_INPUTS.value: Derivative.HVP,
    Entry.JVP_BY_COTANGENTS.value: Derivative.HVP,
}


def derivative_of(call: str) -> Derivative | None:
    """The derivative that a call evaluates, by its name, as "vjp", "widened hvp" or "scaled: vjp twice"; else None."""
    name = call.rpartition(": ")[2].removeprefix("widened ")
    return Derivative(name) if name in _DERIVATIVES else _OF_ENTRIES.get(name)


class Accesses(str, Enum):
    """What a host does about the memory that interpreted programs access.

    RECORDED: note every access, perform none outside of the tensors of a launch, and reply what is wrong.
    FENCED: perform none outside of the storages that programs were given, and reply those.
    UNREPORTED: as FENCED, and reply none.
    FREE: nothing.
    """

    RECORDED = "recorded"
    FENCED = "fenced"
    UNREPORTED = "unreported"
    FREE = "free"


@dataclass(frozen=True)
class Site:
    """Where a number enters: a statement that computes with it, or a launch with its argument's name."""

    place: SourceLine
    argument: str
    value: float


class Kind(str, Enum):
    """What an intervention does.

    NOTE: nothing; the statements that round are noted.
    NARROW: some statements round.
    OVERFLOW: what overflows in its own dtype is infinite, and all else float64.
    NUMBER: nothing; the numbers of the source are noted.
    REPLACE: a number is another.
    COARSEN: every result is rounded to fewer bits than float64 has.
    """

    NOTE = "note"
    NARROW = "narrow"
    OVERFLOW = "overflow"
    NUMBER = "number"
    REPLACE = "replace"
    COARSEN = "coarsen"


@dataclass(frozen=True)
class Intervention:
    """What is done at single statements of a widened kernel and its wrapper.

    Attributes:
        kind: what is done.
        places: the statements that round; one that allocates memory rounds whatever is written there.
        sites: the places of the number that is replaced, all of one value.
        by: the other number.
        bits: of the significand to which results are rounded.
        run: decides by which factors they are scaled before (``host.interpreter.intervention.Coarsened``).
    """

    kind: Kind
    places: tuple[SourceLine, ...] = ()
    sites: tuple[Site, ...] = ()
    by: float = 0.0
    bits: int = 53
    run: int = 0


@dataclass(frozen=True)
class Held:
    """A tensor that is given to a widened kernel in float64, and names another dtype."""

    tensor: Tensor
    dtype: str


@dataclass(frozen=True)
class How:
    """How a call is made.

    Attributes:
        name: of the call: "vjp", or what is asked of a further entry point.
        label: what is done to its arguments, in front of the name in reports: "again: ".
        device: where: "cpu", "cuda" or "cuda:1".
        wide: by ``q``, ``do``, ``tq``: the dtypes that tensors name which are given in float64; None: as written.
        intervention: what is done at single statements.
        accesses: what is done about accesses.
        fill: the sign of the largest number that new memory holds instead of poison; 0: poison.
        configurations: the one of its configurations, counted from 0, that each autotuner is given.
        trials: whether autotuners try each configuration in the call.
        stream: whether it is made on a new stream of the device.
        saved: whether tensors that are saved for a backward are watched.
        claims: the derivatives that the kernel claims. What one of them raises is a crash.
        needs_gradients: whether it is a fault that no output requires grad.
    """

    name: str
    label: str = ""
    device: str = "cpu"
    wide: Mapping[str, str] | None = None
    intervention: Intervention | None = None
    accesses: Accesses = Accesses.FENCED
    fill: int = 0
    configurations: Mapping[str, int] = field(default_factory=dict)
    trials: bool = False
    stream: bool = False
    saved: bool = False
    claims: tuple[Derivative, ...] = tuple(Derivative)
    needs_gradients: bool = False


@dataclass(frozen=True)
class Call:
    """One call of a kernel.

    Attributes:
        kernel: its name.
        entry: the value of an ``Entry``, or the name of a further entry point.
        inputs: by name, in the order of the definition.
        tangents: one for each float input, by the input's name; of an entry that takes none: empty.
        cotangents: one for each float output, by the output's name; of an entry that takes none: empty.
        options: by keyword.
        keyword: the inputs that are passed by keyword.
        returned: what the kernel returns, in order: by name, with its dims for messages, ``o[B T D]``.
        whole: those of them that are integers.
        blocks: the block configuration that is forced; "" for the kernel's own choice.
        explicit: the derivatives for which its own functions are taken, where it has them, and not autograd.
        expected: the inputs that require grad; None: all.
        upstream: the outputs that have a cotangent; None: all.
        along: the inputs that have a tangent; None: all.
        arguments: of a further entry point, between inputs and options: tensors (widened ``Held``), plain values and
            tuples of these.
        later: of VJP_IN_THE_SAME_MEMORY: what the inputs hold at its second call, by name.
        how: how it is made.
    """

    kernel: str
    entry: str
    inputs: Mapping[str, Tensor]
    tangents: Mapping[str, Tensor]
    cotangents: Mapping[str, Tensor]
    options: Mapping[str, Any]
    keyword: tuple[str, ...]
    returned: Mapping[str, str]
    whole: tuple[str, ...]
    blocks: str
    explicit: tuple[Derivative, ...]
    how: How
    expected: tuple[str, ...] | None = None
    upstream: tuple[str, ...] | None = None
    along: tuple[str, ...] | None = None
    arguments: tuple[Any, ...] = ()
    later: Mapping[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """Inputs, cotangents and tangents, by ``q``, ``do``, ``tq``."""
        return {key: tensor for _, _, key, tensor in _each(self)}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Call:
        """The call on other tensors, by ``q``, ``do``, ``tq``."""
        groups: dict[str, dict[str, Tensor]] = {"inputs": {}, "cotangents": {}, "tangents": {}}
        for group, name, key, _ in _each(self):
            groups[group][name] = tensors[key]
        return replace(self, inputs=groups["inputs"], tangents=groups["tangents"], cotangents=groups["cotangents"])


def _each(call: Call) -> list[tuple[str, str, str, Tensor]]:
    """(group, name in it, name among all, tensor)."""
    groups = (("inputs", "", call.inputs), ("cotangents", "d", call.cotangents), ("tangents", "t", call.tangents))
    return [(group, name, f"{prefix}{name}", t) for group, prefix, own in groups for name, t in own.items()]


@dataclass(frozen=True)
class RaisedError:
    """An exception that a kernel raised: the names of its class and of those that this derives from, and its text."""

    names: tuple[str, ...]
    text: str

    @property
    def shown(self) -> str:
        """In one line: its name, and the first line of its message."""
        lines = self.text.strip().splitlines()
        return f"{self.names[0]}: {lines[0]}" if lines else self.names[0]


@dataclass(frozen=True)
class Facts:
    """What a host saw of a call besides what it returned: its word, since nobody else can see it.

    Attributes:
        launches: the number of recorded launches of Triton kernels.
        faults: the wrong accesses of a recorded call.
        outside: the accesses outside of their tensors of a fenced call, which were not performed.
        bands: a sentence for each allocation around which memory was written.
        statements: that round, for an intervention that notes them.
        sites: of numbers, for an intervention that notes them.
        overflowed: whether something overflowed, for an intervention that asks.
        raised: what the kernel raised, for RAISED.
        compiling: seconds spent compiling kernels.
        longest_compilation: seconds of the longest of these.
        called: functions of the folder that is watched that ran, as "file:line" of their first lines.
    """

    launches: int = 0
    faults: tuple[WrongAccess, ...] = ()
    outside: tuple[WrongAccess, ...] = ()
    bands: tuple[str, ...] = ()
    statements: tuple[SourceLine, ...] = ()
    sites: tuple[Site, ...] = ()
    overflowed: bool = False
    raised: RaisedError | None = None
    compiling: float = 0.0
    longest_compilation: float = 0.0
    called: tuple[str, ...] = ()


@dataclass(frozen=True)
class End:
    """How a call ended that returned nothing to be judged.

    Attributes:
        kind: the name of an exception of ``call_errors``.
        text: its message.
        why: the value of its Reason, if it has one.
        call: the call that ran.
        tensor: of a ``Wrong``: the tensor.
    """

    kind: str
    text: str
    why: str = ""
    call: str = ""
    tensor: str = ""


@dataclass(frozen=True)
class Reply:
    """What a host replies to a call.

    Attributes:
        returned: what the kernel returned, by part: "outputs", "gradients", "tangents", ...; a tuple of tensors, None
            for each that is missing. Of a further entry point "returned": as it was.
        facts: what was seen.
        end: how it ended, if it returned nothing.
        after: the call's tensors as they are after it, with the same layouts.
    """

    returned: Mapping[str, Any]
    facts: Facts
    end: End | None
    after: Mapping[str, Tensor]

    @classmethod
    def ended(cls, call: Call, end: End) -> Reply:
        """The reply to a call that was not made."""
        return cls({}, Facts(), end, call.tensors())


class KernelHost(Protocol):
    """Runs the kernels of one target: in this process, or in another.

    Attributes:
        seconds: the time after which a call counts as hanging.
    """

    seconds: float

    @property
    def ended(self) -> Sequence[EndedProcess]:
        """The calls that ended its process, in order."""

    def ask(self, kernel: str, what: str, arguments: Sequence[Any]) -> Any:
        """A declaration of a kernel that is a function, on plain values, as JSON holds its value."""

    def rehearsal(self) -> AbstractContextManager[list[Compilation]]:
        """Within it calls launch nothing; afterwards the list has what they would compile."""

    def compile_ahead(self, compilation: Compilation) -> float:
        """Make one compilation, for the processes that share Triton's cache: the seconds that it took."""

    @property
    def interprets(self) -> bool:
        """Whether Triton kernels are interpreted there, so that accesses are recorded and kernels can be widened."""

    @property
    def devices(self) -> int:
        """The number of GPUs there."""

    def call(self, call: Call) -> Reply:
        """Make a call."""

    def close(self) -> None:
        """End it."""
