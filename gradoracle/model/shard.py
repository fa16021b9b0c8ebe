"""Shard: what the report of one part of a run adds to its verdicts, so that all parts can be merged. Plain data.

A place is that of a case in the stream of the whole run, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradoracle.model.sums import Sums

EXPECTED = "expected reports of shards, by gradoracle check TARGET --shard I/N --format json --output FILE"


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
        decisive: properties of which every tensor must be decided.
        commands: by kernel, the command that repeats the whole run, without the property.
        sizes: how a user states which sizes the definition is meant for.
        first: the place of the first case of each coverage goal and of each message in ``refusals``.
        undefined: errors of the definition, one sentence for each case, by place.
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
