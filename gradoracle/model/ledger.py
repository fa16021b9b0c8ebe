"""Ledger: what a run judged, as records: a header, each case, what was made of failing ones, and the end of the run.

A report is computed from a ledger (``check.fold``); the ledgers of the parts of a run add up to that of the whole. In a
file each record is a line of JSON, sealed by a digest of itself and of the seal before it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gradoracle.model.case import Case, parse
from gradoracle.model.derivative import Derivative
from gradoracle.model.errors import UsageError
from gradoracle.model.explanation import PrecisionLoss, WrongConstant
from gradoracle.model.fault import VerdictKey
from gradoracle.model.finding import NO_EDIT, EditedDefinition
from gradoracle.model.job import CaseResult, EndedProcess, PropertyResult
from gradoracle.model.location import Location
from gradoracle.model.property import PropertyKind
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Status
from gradoracle.model.versions import public

_ALIKE = (
    "gradoracle",
    "commit",
    "torch",
    "triton",
    "host",
)  # versions that all parts of a run share, where they are known


@dataclass(frozen=True)
class LedgerKernel:
    """What a report says of a kernel apart from its verdicts.

    Attributes:
        target: as the command line takes it, with the kernel's name where there are several.
        contracts: dtype -> the preset that it is judged under.
        declared: the dtypes whose contract it declares.
        claims: derivative -> as in ``model.claims``.
        narrowed: the dims whose sizes it supports in part, in words.
        location: where it is written in the working tree, if there.
        again: the command that judges all its cases again.
        saved: the case of saved tensors in words; "" where cases are generated.
        again_saved: the command that judges that case again.
    """

    target: str
    contracts: Mapping[str, str]
    declared: tuple[str, ...] = ()
    claims: Mapping[str, str] = field(default_factory=dict)
    narrowed: str = ""
    location: Location | None = None
    again: str = ""
    saved: str = ""
    again_saved: str = ""


@dataclass(frozen=True)
class LedgerProperty:
    """What a report says of a property apart from its verdicts; the fields of a Verdict."""

    statement: str
    rank: int = 0
    kind: PropertyKind = PropertyKind.RELATION
    cause: str = ""
    derivative: Derivative | None = None
    decisive: bool = False


@dataclass(frozen=True)
class Header:
    """What a run was asked, of what, by what and on what.

    Attributes:
        target: as the command line has it.
        family: the name of the definition.
        device: cpu or cuda.
        seed: of the stream.
        asked: the other options that verdicts depend on, as on the command line.
        held: those of them that a case line lacks, as words of a command.
        place: where the family is, for case lines; "" for one that the target names.
        part: the I and N of ``--shard I/N``.
        kernels: by name.
        properties: those that judge, by name.
        owed: the verdicts that the whole run must give.
        planned: "kernel in dtype" -> cases of this part.
        cases: those of the whole run.
        stream: a digest of all of them with the properties that fall on each.
        goals: coverage goal -> the least number of cases.
        require: globs of properties that must have been checked.
        fail_on: the least severity that counts; None: as ``Verdict.counts``.
        notes: for the report.
        sizes: how a user states which sizes the definition is meant for.
        dim: whose size errors are plotted against.
        is_shrunk: whether failing cases are shrunk.
        missing: kernels and block configurations that the judge has and the kernels' own project lacks.
        files: digests of the files of the kernels, their definition and properties, by path in the working tree.
        packages: versions of the installed packages that these come from, by name.
        environment: versions and the machine.
    """

    target: str
    family: str
    device: str
    seed: int
    kernels: Mapping[str, LedgerKernel]
    properties: Mapping[str, LedgerProperty]
    owed: tuple[VerdictKey, ...]
    planned: Mapping[str, int]
    cases: int
    stream: str
    asked: Mapping[str, str] = field(default_factory=dict)
    held: str = ""
    place: str = ""
    part: tuple[int, int] = (1, 1)
    goals: Mapping[str, int] = field(default_factory=dict)
    require: tuple[str, ...] = ()
    fail_on: Severity | None = None
    notes: tuple[str, ...] = ()
    sizes: str = ""
    dim: str = ""
    is_shrunk: bool = True
    missing: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def line(self, kernel: str, case: Case) -> str:
        """A case as a line that replays this target's kernel; of saved tensors, which they are."""
        own = self.kernels[kernel]
        place = self.place if self.place != case.family else ""
        return own.saved or case.line(own.target, self.device, place)


@dataclass(frozen=True)
class CaseRecord:
    """One case, judged.

    Attributes:
        place: of the case in the stream of the whole run, from 0.
        kernel: its name.
        case: its line, which names no target.
        results: of each property.
        compiling: seconds spent compiling kernels.
        longest_compilation: seconds of the longest of these.
        called: functions that ran, as ``model.call.Facts`` names them.
        ended: the calls that ended the process of the kernel.
        goals: the coverage goals that it meets.
        marks: what a case that was refused is counted by, such as ``dtype=float32``.
    """

    place: int
    kernel: str
    case: str
    results: tuple[PropertyResult, ...]
    compiling: float = 0.0
    longest_compilation: float = 0.0
    called: tuple[str, ...] = ()
    ended: tuple[EndedProcess, ...] = ()
    goals: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    @classmethod
    def of(cls, found: CaseResult, place: int, goals: Sequence[str] = (), marks: Sequence[str] = ()) -> CaseRecord:
        """The record of a result."""
        record = cls(
            place,
            found.kernel,
            found.case.line(),
            found.results,
            found.compiling,
            found.longest_compilation,
            found.called,
            found.ended,
            tuple(goals),
            tuple(marks),
        )
        record.__dict__["built"] = found.case
        return record

    @functools.cached_property
    def built(self) -> Case:
        """The case."""
        return parse(self.case)[2]

    @property
    def name(self) -> str:
        """The name of the case of its kernel, the same under whatever TARGET it is checked."""
        return _named(self.kernel, self.case)

    @functools.cached_property
    def by_property(self) -> Mapping[str, PropertyResult]:
        """The results, by property."""
        return {each.property_name: each for each in self.results}

    @property
    def dtype(self) -> str:
        """Of the case."""
        return self.built.dtype

    def status(self, property_name: str) -> Status | None:
        """The status of a property; None where it did not judge the case."""
        found = self.by_property.get(property_name)
        return None if found is None else found.status

    def __add__(self, other: CaseRecord) -> CaseRecord:
        """The record of a case that was judged twice, by different properties; of one judged twice, the first."""
        more = tuple(each for each in other.results if each.property_name not in self.by_property)
        if not more:
            return self
        return replace(
            self,
            results=(*self.results, *more),
            compiling=self.compiling + other.compiling,
            longest_compilation=max(self.longest_compilation, other.longest_compilation),
            called=tuple(sorted({*self.called, *other.called})),
            ended=(*self.ended, *other.ended),
            goals=self.goals or other.goals,
            marks=self.marks or other.marks,
        )


@dataclass(frozen=True)
class SmallerRecord:
    """What shrinking the first failing case of a verdict came to.

    Attributes:
        verdict: the one that fails.
        place: of the case that was shrunk.
        case: the line of the smallest case found; "" where none was looked for.
        result: on it.
        message: what explains the violation, or what the process did.
        note: why it may not be the smallest.
        edited: an edited definition that gives what the kernel gave on several cases.
    """

    verdict: VerdictKey
    place: int
    case: str = ""
    result: PropertyResult | None = None
    message: str = ""
    note: str = ""
    edited: EditedDefinition = NO_EDIT


@dataclass(frozen=True)
class SeverityRecord:
    """The severity of a verdict that a GPU left undecided, by the widened kernel on the CPU.

    Attributes:
        verdict: the one that fails.
        place: of the case that is shown.
        severity: of the verdict.
        undecided: why it is still not known.
        is_located: whether it was judged where what follows was looked for.
        loss: the statement at which precision is lost.
        constant: whose value explains what is wrong.
    """

    verdict: VerdictKey
    place: int
    severity: Severity
    undecided: str = ""
    is_located: bool = False
    loss: PrecisionLoss | None = None
    constant: WrongConstant | None = None


@dataclass(frozen=True)
class Piece:
    """One thing that judges a target.

    Attributes:
        text: its fingerprint, or its content where that is short.
        kernel: the kernel that it is declared for; "" for what judges all kernels of the target.
    """

    text: str
    kernel: str = ""


@dataclass(frozen=True)
class JudgeRecord:
    """What a gate compares besides cases.

    Attributes:
        name: of the target in the project's configuration.
        settings: that it was checked with, by their names on the command line.
        files: digests of the target's files in the working tree.
        pieces: what judges it, by name.
        engine: a fingerprint of gradoracle where it is part of the tree, else "".
    """

    name: str = ""
    settings: Mapping[str, str | list[str]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    pieces: Mapping[str, Piece] = field(default_factory=dict)
    engine: str = ""


@dataclass(frozen=True)
class EndRecord:
    """The end of a run, or of one part of it.

    Attributes:
        seconds: how long it took.
        interrupted: why it stopped early; "" where it did not.
        stopped: "kernel: call" that still ran when the time was up -> seconds.
        compiling: seconds spent compiling ahead of cases.
        longest_compilation: seconds of the longest of these.
    """

    seconds: float = 0.0
    interrupted: str = ""
    stopped: Mapping[str, float] = field(default_factory=dict)
    compiling: float = 0.0
    longest_compilation: float = 0.0


Record = CaseRecord | SmallerRecord | SeverityRecord | JudgeRecord | EndRecord
R = TypeVar("R", CaseRecord, SmallerRecord, SeverityRecord, JudgeRecord, EndRecord)


@dataclass
class Section:
    """The records of one process, in any order.

    Attributes:
        header: of the run, or of the part of it that the process judged.
        records: what it judged.
        file: what it was read from, for messages; "" where it was not.
    """

    header: Header
    records: list[Record] = field(default_factory=list)
    file: str = ""

    def of(self, kind: type[R]) -> list[R]:
        """The records of one kind."""
        return [each for each in self.records if isinstance(each, kind)]


@dataclass(frozen=True)
class Part:
    """How far one part of a run came.

    Attributes:
        planned: "kernel in dtype" -> cases.
        judged: how many cases were judged.
        ends: of the processes that judged it; those that say how they ended.
    """

    planned: Mapping[str, int]
    judged: int
    ends: tuple[EndRecord, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every planned case was judged."""
        return self.judged >= sum(self.planned.values())

    @property
    def interrupted(self) -> str:
        """Why it ended early; "" where it did not."""
        if not self.ends:
            return f"the run was ended from outside, after {self.judged} of {sum(self.planned.values())} cases"
        return min(end.interrupted for end in self.ends)  # "" of the one that resumed it

    @property
    def stopped(self) -> Mapping[str, float]:
        """What still ran when the time was up, unless all was judged after that."""
        return {} if len(self.ends) > 1 and self.is_whole else largest(end.stopped for end in self.ends)


@dataclass
class Ledger:
    """What one run judged, by one process or by several.

    Attributes:
        sections: of one run, at least one.
        damage: what could not be read, a sentence each.
    """

    sections: list[Section]
    damage: list[str] = field(default_factory=list)

    @property
    def header(self) -> Header:
        """That of the first section."""
        return self.sections[0].header

    def add(self, record: Record) -> None:
        """Add a record to the last section."""
        self.sections[-1].records.append(record)

    def of(self, kind: type[R]) -> list[R]:
        """All records of one kind."""
        return [record for section in self.sections for record in section.of(kind)]

    @property
    def cases(self) -> dict[str, CaseRecord]:
        """The cases by ``CaseRecord.name``, in the order of the stream."""
        found: dict[str, CaseRecord] = {}
        for record in sorted(self.of(CaseRecord), key=lambda each: each.place):
            found[record.name] = found[record.name] + record if record.name in found else record
        return found

    @property
    def parts(self) -> dict[int, Part]:
        """The parts of the run that it has, by the I of ``--shard I/N``."""
        own: dict[int, list[Section]] = {}
        for section in self.sections:
            own.setdefault(section.header.part[0], []).append(section)
        return {
            number: Part(
                sections[0].header.planned,
                len({record.name for each in sections for record in each.of(CaseRecord)}),
                tuple(end for each in sections for end in each.of(EndRecord)),
            )
            for number, sections in sorted(own.items())
        }

    @property
    def is_whole(self) -> bool:
        """Whether every case that its parts planned was judged."""
        return all(part.is_whole for part in self.parts.values())

    def take(self, other: Ledger) -> None:
        """Take the records of another process.

        Raises:
            UsageError: they are of another run.
        """
        ours, theirs = self.sections[0], other.sections[0]
        for name, a, b in differences(ours.header, theirs.header):
            raise UsageError(
                f"{ours.file or 'this run'} and {theirs.file or 'another'} come from different runs: {name} is "
                f"{a or 'none'} in one and {b or 'none'} in the other; expected ledgers of one run"
            )
        self.sections += other.sections
        self.damage += (each for each in other.damage if each not in self.damage)

    def __or__(self, other: Ledger) -> Ledger:
        """The records of both; raises UsageError as ``take``."""
        both = Ledger(list(self.sections), list(self.damage))
        both.take(other)
        return both


def name_of(kernel: str, case: Case) -> str:
    """As ``CaseRecord.name``."""
    return _named(kernel, case.line())


def _named(kernel: str, line: str) -> str:
    return f"{kernel}: {line}"


def is_of(ours: Header, theirs: Header) -> bool:
    """Whether both are of one run."""
    return next(differences(ours, theirs), None) is None


def of_target(ledgers: Iterable[Ledger], header: Header) -> Ledger | None:
    """The ledger of a header's run, else that of another run of its target; None where there is neither."""
    same = [each for each in ledgers if each.header.target == header.target]
    return next((each for each in same if is_of(each.header, header)), same[0] if same else None)


def differences(ours: Header, theirs: Header) -> Iterator[tuple[str, str, str]]:
    """(name, value in one, value in the other) of each fact in which the parts of one run must not differ."""
    facts: list[tuple[str, object, object]] = [
        (name, getattr(ours, name), getattr(theirs, name)) for name in ("target", "family", "seed")
    ]
    facts += [("the device", ours.device, theirs.device), ("the N of --shard I/N", ours.part[1], theirs.part[1])]
    facts += [(name, *both) for name, both in _pairs(ours.asked, theirs.asked)]
    facts += [("kernels", ", ".join(ours.kernels), ", ".join(theirs.kernels))]
    facts += [
        ("the contract", _words(ours.kernels[name].contracts), _words(theirs.kernels[name].contracts))
        for name in ours.kernels
        if name in theirs.kernels
    ]
    for name in _ALIKE:
        a, b = (public(each.environment.get(name, "")) for each in (ours, theirs))
        if name != "commit" or (a and b):
            facts.append((name, a, b))
    facts += [(f"the content of {name}", a[:12], b[:12]) for name, (a, b) in _pairs(ours.files, theirs.files)]
    facts += [(f"the version of {name}", *both) for name, both in _pairs(ours.packages, theirs.packages)]
    facts += [("the digest of all cases", ours.stream[:12], theirs.stream[:12])]
    yield from ((name, str(a), str(b)) for name, a, b in facts if a != b)


def _pairs(these: Mapping[str, str], those: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    yield from ((name, (these.get(name, ""), those.get(name, ""))) for name in sorted({*these, *those}))


def _words(contracts: Mapping[str, str]) -> str:
    return " ".join(f"{dtype}={preset}" for dtype, preset in sorted(contracts.items()))


def largest(several: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The largest number of each name."""
    found: dict[str, float] = {}
    for each in several:
        for name, number in each.items():
            found[name] = max(found.get(name, number), number)
    return found
