"""Sharding: which cases of the stream a part of a run has, and what its report holds so that parts can be merged."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradoracle.case import Case
from gradoracle.closure import closure, digests
from gradoracle.command import asked, repeated
from gradoracle.environment import public, version
from gradoracle.examine import Job, sizes_wanted
from gradoracle.finding import Outcome
from gradoracle.location import function_of, is_source, working_tree
from gradoracle.shard import Left, Seen, Shard, Sums, Telling
from gradoracle.tally import Count, Key
from gradoracle.verdict import Counterexample, Status

if TYPE_CHECKING:
    from gradoracle.check import Run

_LOGS = ".txt"  # beside a file of no package it is what somebody kept of a run
_WRITTEN = ("gradoracle-", "https://docs.oasis-open.org/sarif/")  # how the schema of what gradoracle writes begins


class Stream:
    """All cases of a run, of which a shard has some: how many they are, a digest of them, and each one's place.

    Args:
        jobs: of the whole run, in order.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs = list(jobs)
        self._places = {(job.kernel, job.case): place for place, job in enumerate(self.jobs)}
        lines = "\n".join(f"{job.kernel} {job.case} {','.join(job.laws)}" for job in self.jobs)
        self.digest = hashlib.sha256(lines.encode()).hexdigest()

    def place(self, kernel: str, case: Case) -> int:
        """Of a case of a kernel, from 0."""
        return self._places[kernel, case]

    def part(self, part: int, parts: int) -> list[Job]:
        """Every N-th job of each kernel and dtype, so that every shard has all of them; ``part`` is from 1."""
        turns: dict[tuple[str, str], itertools.count[int]] = {}
        mine = []
        for job in self.jobs:
            turn = next(turns.setdefault((job.kernel, job.case.dtype), itertools.count()))
            if turn % parts == part - 1:
                mine.append(job)
        return mine


def shard_of(run: Run, counterexamples: Mapping[Key, Counterexample]) -> Shard | None:
    """What the report of a run holds of it as a shard; None where it is no shard."""
    stream, request = run.stream, run.request
    if stream is None:
        return None
    laws = [law.law for law in run.laws.values()]
    functions = [run.family.definition, *(kernel.call for kernel in run.kernels.values()), *laws]
    return Shard(
        *request.shard,
        asked(request),
        stream.digest,
        len(stream.jobs),
        files_of(functions, request.target),
        packages_of(functions),
        request.require,
        tuple(law.name for law in run.laws.values() if law.decisive),
        {name: repeated(request, run.place(name), run.device, shard=(1, 1)) for name in run.kernels},
        sizes_wanted(run.family),
        {name: stream.place(*first) for name, first in run.first.items()},
        {str(stream.place(*where)): sentence for where, sentence in run.undefined.items()},
        tuple(_sums(run, stream, key, count, counterexamples.get(key)) for key, count in run.tally.counts.items()),
    )


def files_of(functions: Sequence[Any], target: str) -> dict[str, str]:
    """The digests of the files that functions and a TARGET are made of, by their paths from the root of their tree.

    The root is that of a working tree, else the current folder, else the file's own. Installed packages are left out,
    and so are logs and reports, which lie beside a kernel after one shard and not after another.
    """
    files = {Path(code.co_filename) for each in functions if (code := getattr(function_of(each), "__code__", None))}
    place = target.rpartition(":")[0] if ":" in target else target
    files |= {Path(place)} if place.endswith(".py") else set()
    by_root: dict[Path, set[Path]] = {}
    for file in (file.resolve() for file in files if file.is_file()):
        root = _root(file)
        if is_source(str(file), str(root)):
            by_root.setdefault(root, set()).add(file)
    found: dict[str, str] = {}
    for root, starts in sorted(by_root.items()):
        found |= digests((file for file in _closure(frozenset(starts), root) if not _is_written(file)), root)
    return found


def packages_of(functions: Sequence[Any]) -> dict[str, str]:
    """The versions of the installed packages that functions are from, gradoracle's own left out."""
    found: dict[str, str] = {}
    for function in map(function_of, functions):
        name = (getattr(function, "__module__", None) or "").partition(".")[0]
        code = getattr(function, "__code__", None)
        file = None if code is None else Path(code.co_filename).resolve()
        if name in ("", "gradoracle") or (file is not None and is_source(str(file), str(_root(file)))):
            continue
        found |= {each: public(version(each)) for each in _distributions().get(name, ())}
    return dict(sorted(found.items()))


@functools.cache
def _distributions() -> Mapping[str, Sequence[str]]:
    return metadata.packages_distributions()


@functools.cache
def _closure(starts: frozenset[Path], root: Path) -> frozenset[Path]:
    return closure(starts, root)


def _is_written(file: Path) -> bool:
    """Whether a file is no part of any kernel, but what a check has written or may have taken away again."""
    if not os.access(file, os.R_OK):
        return True
    if file.suffix == _LOGS:
        return not (file.parent / "__init__.py").is_file()
    if file.suffix != ".json":
        return False
    try:
        document = json.loads(file.read_bytes())
    except ValueError:
        return False
    schema = (document.get("schema") or document.get("$schema")) if isinstance(document, dict) else None
    return isinstance(schema, str) and schema.startswith(_WRITTEN)


def _root(file: Path) -> Path:
    """The folder that a file's path is told from, the same in every copy of its project."""
    tree, here = working_tree(file.parent), Path.cwd().resolve()
    if (tree / ".git").exists():
        return tree
    return here if file.is_relative_to(here) else file.parent


def _sums(run: Run, stream: Stream, key: Key, count: Count, shown: Counterexample | None) -> Sums:
    kernel = key[1]

    def seen(counted: Mapping[str, int]) -> dict[str, Seen]:
        return {reason: Seen(many, stream.place(kernel, count.cases[reason])) for reason, many in counted.items()}

    held = count.first.get(Status.HOLDS)
    return Sums(
        *key,
        {
            status.value: Seen(many, stream.place(kernel, count.first[status][0]))
            for status, many in count.statuses.items()
            if many
        },
        seen(count.reasons),
        seen(count.refusals),
        dict(count.notes),
        dict(count.decided),
        {name: Left(reason, stream.place(kernel, count.cases[name])) for name, reason in count.left.items()},
        tuple(count.sensitivities),
        count.error,
        count.in_sigma,
        count.pools,
        count.pooled,
        run.line(kernel, held[0]) if held is not None else "",
        _telling(run, stream, key) if shown is not None and shown.further else (),
    )


def _telling(run: Run, stream: Stream, key: Key) -> tuple[Telling, ...]:
    """The cases that a counterexample's ``further`` tells of."""
    found = []
    for case, result in run.tally.telling(key):
        wrong = [finding for finding in result.findings if finding.outcome is Outcome.VIOLATED]
        found.append(Telling(stream.place(key[1], case), sum(finding.elements for finding in wrong), len(wrong)))
    return tuple(found)
