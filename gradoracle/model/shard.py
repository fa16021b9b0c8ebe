"""Shard: what the report of one part of a run holds beside its verdicts, so that all parts make that of the whole.

Plain data. A place is that of a case in the stream of the whole run, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradoracle.model.sums import Sums


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
