"""Sums: the totals over the cases of a run or of one part of it; parts of one plan are added by ``+``.

Shard: what the report of one part adds to its verdicts, its sums among them, so that all parts can be merged.

Plain data. A place is that of a case in the stream of the whole plan, from 0: the first place of something depends
neither on which part saw it nor on the order in which results arrive.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from gradoracle.model.finding import Pool
from gradoracle.model.reason import Reason
from gradoracle.model.serialize import NAMED_PROPERTY

EXPECTED = "expected reports of shards, by gradoracle check TARGET --shard I/N --format json --output FILE"
TELLING = 8  # violating cases that a verdict keeps


@dataclass(frozen=True)
class Seen:
    """The number of cases on which something was seen, and the place of the first."""

    count: int
    first: int

    def __add__(self, other: Seen) -> Seen:
        return Seen(self.count + other.count, min(self.first, other.first))


N = TypeVar("N", int, float, Seen, Pool)  # what ``+`` adds up


@dataclass(frozen=True)
class Left:
    """Why a tensor was not decided, and the place of the first case on which it was not."""

    reason: str
    first: int


@dataclass(frozen=True)
class Telling:
    """A violating case: its place, how many elements are wrong, and in how many findings."""

    place: int
    elements: int
    findings: int


@dataclass
class Sums:
    """The totals of one property on one kernel and dtype.

    Attributes:
        property_name, kernel, dtype: the key of the verdict.
        statuses: cases, by status.
        reasons: cases that were refused or not checked, by reason.
        kinds: the kind of each reason.
        refusals: cases that were refused, by message.
        notes: cases, by note.
        decided: the number of cases on which a tensor was decided, by tensor.
        left: the reason why it was not, by tensor.
        sensitivities: the sensitivity of every tensor that has one.
        error: the largest error / budget.
        in_sigma: the largest error in sigma.
        pools: the sums of the pooled rules, by tensor.
        pooled: the number of tensors in them.
        held: the line of the first case on which the property held; "" if there is none.
        telling: the violating cases with the most elements, in descending order.
        severities: violating cases, by severity; of those that are wrong the first alone.
        undecided: violating cases whose severity is undecided, by reason.
        presets: violating cases that are not wrong, by the preset that explains them; "" if none does.
        off: the distance by which a tensor's formula is off, by tensor, where that is less than the dtype shows.
        detached: the line of the first case whose outputs do not require grad; "" if there is none.
    """

    property_name: str = field(metadata=NAMED_PROPERTY)
    kernel: str
    dtype: str
    statuses: dict[str, Seen] = field(default_factory=dict)
    reasons: dict[str, Seen] = field(default_factory=dict)
    kinds: dict[str, Reason] = field(default_factory=dict)
    refusals: dict[str, Seen] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    decided: dict[str, int] = field(default_factory=dict)
    left: dict[str, Left] = field(default_factory=dict)
    sensitivities: list[float] = field(default_factory=list)
    error: float = 0.0
    in_sigma: float = 0.0
    pools: dict[str, Pool] = field(default_factory=dict)
    pooled: int = 0
    held: str = ""
    telling: list[Telling] = field(default_factory=list)
    severities: dict[str, Seen] = field(default_factory=dict)
    undecided: dict[str, Seen] = field(default_factory=dict)
    presets: dict[str, Seen] = field(default_factory=dict)
    off: dict[str, float] = field(default_factory=dict)
    detached: str = ""

    def count(self, status: str) -> int:
        """The number of cases with a status."""
        return self.statuses[status].count if status in self.statuses else 0

    @property
    def detachments(self) -> list[tuple[str, Seen]]:
        """Reasons about outputs that do not require grad, and their cases, in stream order."""
        return [each for each in in_order(self.reasons) if self.kinds.get(each[0]) is Reason.DETACHED]

    def __add__(self, other: Sums) -> Sums:
        """The totals of both parts."""
        held = min((each for each in (self, other) if each.held), key=_first_held, default=self).held
        left = dict(self.left)
        for tensor, why in other.left.items():
            left[tensor] = min(left.get(tensor, why), why, key=lambda each: each.first)
        return Sums(
            self.property_name,
            self.kernel,
            self.dtype,
            together(self.statuses, other.statuses),
            together(self.reasons, other.reasons),
            {**self.kinds, **other.kinds},
            together(self.refusals, other.refusals),
            together(self.notes, other.notes),
            together(self.decided, other.decided),
            left,
            [*self.sensitivities, *other.sensitivities],
            max(self.error, other.error),
            max(self.in_sigma, other.in_sigma),
            together(self.pools, other.pools),
            self.pooled + other.pooled,
            held,
            heapq.nsmallest(TELLING, [*self.telling, *other.telling], key=order_of_telling),
            together(self.severities, other.severities),
            together(self.undecided, other.undecided),
            together(self.presets, other.presets),
            {name: max(each.off.get(name, 0.0) for each in (self, other)) for name in {**self.off, **other.off}},
            min((each for each in (self, other) if each.detached), key=_first_detached, default=self).detached,
        )


@dataclass(frozen=True)
class Shard:
    """One part of a run.

    Attributes:
        part, parts: the I and N of ``--shard I/N``.
        asked: the options that verdicts depend on, other than target, device and seed, as on the command line.
        stream: a digest of all cases of the whole run with the properties that fall on each.
        cases: their number.
        files: digests of the files of the kernels, their definition and properties, by path in the working tree.
        packages: versions of the installed packages that these come from, by name.
        require: globs of properties that must have been checked.
        decisive: properties whose every tensor must be decided.
        commands: the command that repeats the whole run, without the property, by kernel.
        sizes: how a user states which sizes the definition is meant for.
        first: the place of the first case of each coverage goal and of each message in ``refusals``.
        undefined: errors of the definition, one sentence for each case, by place.
        sums: the sums in the order of the verdicts.
    """

    part: int
    parts: int
    asked: dict[str, str]
    stream: str
    cases: int
    files: dict[str, str]
    packages: dict[str, str]
    require: tuple[str, ...]
    decisive: tuple[str, ...]
    commands: dict[str, str]
    sizes: str
    first: dict[str, int]
    undefined: dict[str, str]
    sums: tuple[Sums, ...]

    def __str__(self) -> str:
        return f"{self.part}/{self.parts}"


def order_of_telling(case: Telling) -> tuple[int, int]:
    """Sort key: most elements first, then the order of the stream."""
    return -case.elements, case.place


def _first_held(sums: Sums) -> int:
    return sums.statuses["holds"].first


def _first_detached(sums: Sums) -> int:
    return sums.detachments[0][1].first


def add(known: dict[str, N], name: str, more: N) -> None:
    """Add to the value of a name."""
    known[name] = known[name] + more if name in known else more


def in_order(known: Mapping[str, Seen]) -> list[tuple[str, Seen]]:
    """The items in the order in which the stream has them."""
    return sorted(known.items(), key=lambda item: item[1].first)


def together(these: Mapping[str, N], those: Mapping[str, N]) -> dict[str, N]:
    """The sum of two mappings, name by name."""
    found = dict(these)
    for name, more in those.items():
        add(found, name, more)
    return found
