"""Shard: what the report of one part of a run holds beside its verdicts, so that all parts make that of the whole.

Plain data. A place is that of a case in the stream of the whole run, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradoracle.finding import Pool


@dataclass(frozen=True)
class Seen:
    """On how many cases of a part something was seen, and the place of the first of them."""

    count: int
    first: int


@dataclass(frozen=True)
class Left:
    """Why a tensor was not decided, and the place of the first case on which it was not."""

    reason: str
    first: int


@dataclass(frozen=True)
class Telling:
    """A violating case of many elements: its place, the elements found wrong, and how many findings tell of them."""

    place: int
    elements: int
    findings: int


@dataclass(frozen=True)
class Sums:
    """What the cases of a part add up to, for one verdict.

    Attributes:
        law, kernel, dtype: whose verdict it is.
        statuses: by status, the cases that ended so.
        reasons: why cases were refused or not checked.
        refusals: the messages of those that were refused.
        notes: what is noted of cases, and of how many.
        decided: by tensor, on how many cases it was decided.
        left: by tensor, why it was not.
        sensitivities: of every tensor that has one.
        error: the largest error against its budget.
        in_sigma: the same in sigma.
        pools: by tensor, the sums of the pooled rules.
        pooled: how many tensors are in them.
        held: the line of the first case on which the law held; empty where it held on none.
        telling: the cases whose findings are ``further`` of the counterexample, in that order.
    """

    law: str
    kernel: str
    dtype: str
    statuses: dict[str, Seen] = field(default_factory=dict)
    reasons: dict[str, Seen] = field(default_factory=dict)
    refusals: dict[str, Seen] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    decided: dict[str, int] = field(default_factory=dict)
    left: dict[str, Left] = field(default_factory=dict)
    sensitivities: tuple[float, ...] = ()
    error: float = 0.0
    in_sigma: float = 0.0
    pools: dict[str, Pool] = field(default_factory=dict)
    pooled: int = 0
    held: str = ""
    telling: tuple[Telling, ...] = ()


@dataclass(frozen=True)
class Shard:
    """One part of a run.

    Attributes:
        part, parts: the I and N of ``--shard I/N``.
        asked: what decides the verdicts beside target, device and seed, by option, as on the command line.
        stream: a digest of all cases of the whole run with the laws that fall on each.
        cases: how many they are.
        files: of what the kernels, their definition and its laws are made, digests by path in their working tree.
        packages: of the installed ones that they are from, versions by name.
        require: globs of laws that must have been checked.
        decisive: laws whose every tensor must be decided.
        commands: by kernel, what runs the whole again, but for the law.
        sizes: how to say which sizes the definition is meant for.
        first: the place of the first case of each situation and of each message in ``refusals``.
        undefined: what is wrong with the definition, one sentence of each case, by place.
        sums: in the order of the verdicts.
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
