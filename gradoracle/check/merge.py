"""Merge: turns the reports of the shards of one run into the report that one process would have given."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gradoracle.check.aggregate import complete, verdict_of
from gradoracle.check.completeness import shortfall
from gradoracle.check.faults import diagnosed, grouped
from gradoracle.check.minimise import mapped
from gradoracle.check.severity import leave_open, settle_pooled
from gradoracle.model.errors import UsageError
from gradoracle.model.fault import VerdictKey
from gradoracle.model.finding import NO_EDIT, Finding
from gradoracle.model.statistics import Measurements
from gradoracle.model.sums import EXPECTED, TELLING, Shard, Sums, together
from gradoracle.model.verdict import FAILING, Counterexample, Report, Status, Verdict
from gradoracle.model.versions import public

N = TypeVar("N", int, float)

_ALIKE = ("gradoracle", "commit", "torch", "triton")  # versions that all shards must share, where they are known


@dataclass(frozen=True)
class Part:
    """One shard's report of one target, and its file."""

    file: str
    report: Report
    shard: Shard


def merge(documents: Sequence[tuple[str, Sequence[Report]]]) -> list[Report]:
    """The reports of a run from those of its shards, target by target in the order of the documents.

    A single document that holds the reports of a whole run is returned unchanged.

    Args:
        documents: (file name, its reports).

    Raises:
        UsageError: a report of no shard, shards of different runs, or the same shard twice.
    """
    if len(documents) == 1 and all(report.shard is None for report in documents[0][1]):
        return list(documents[0][1])
    parts = [(file, [_part(file, report) for report in reports]) for file, reports in documents]
    most = max(len(reports) for _, reports in parts)
    groups = [[reports[target] for _, reports in parts if target < len(reports)] for target in range(most)]
    for group in groups:
        _require_one_run(group)
    return [_Whole(group).report() for group in groups]


def _part(file: str, report: Report) -> Part:
    if report.shard is None:
        raise UsageError(f"{file} holds a report of {report.target} that is not of a shard; {EXPECTED}")
    return Part(file, report, report.shard)


def _require_one_run(group: Sequence[Part]) -> None:
    """Check that all parts are different shards of one run."""
    known: dict[int, Part] = {}
    for part in group:
        for name, ours, theirs in _differences(group[0], part):
            raise UsageError(
                f"{group[0].file} and {part.file} come from different runs: {name} is {ours or 'none'} in one and "
                f"{theirs or 'none'} in the other; expected shards of one run"
            )
        other = known.setdefault(part.shard.part, part)
        if other is not part:
            raise UsageError(f"shard {part.shard} is given twice, by {other.file} and {part.file}; expected each once")


def _differences(one: Part, other: Part) -> Iterator[tuple[str, str, str]]:
    """(name, value in one, value in the other) of each fact in which shards of one run must not differ."""
    facts: list[tuple[str, object, object]] = [
        (name, getattr(one.report, name), getattr(other.report, name)) for name in ("target", "family", "seed")
    ]
    facts += [("the device", one.report.device, other.report.device)]
    facts += [("the N of --shard I/N", one.shard.parts, other.shard.parts)]
    names = dict.fromkeys([*one.shard.asked, *other.shard.asked])
    facts += [(name, one.shard.asked.get(name, ""), other.shard.asked.get(name, "")) for name in names]
    facts += [("kernels", ", ".join(one.report.kernels), ", ".join(other.report.kernels))]
    facts += [("the contract", _words(one.report.contracts), _words(other.report.contracts))]
    for name in _ALIKE:
        ours, theirs = (public(part.report.environment.get(name, "")) for part in (one, other))
        if name != "commit" or (ours and theirs):
            facts.append((name, ours, theirs))
    for name in sorted({*one.shard.files, *other.shard.files}):
        ours, theirs = (part.shard.files.get(name, "")[:12] for part in (one, other))
        facts.append((f"the content of {name}", ours, theirs))
    for name in sorted({*one.shard.packages, *other.shard.packages}):
        ours, theirs = (part.shard.packages.get(name, "") for part in (one, other))
        facts.append((f"the version of {name}", ours, theirs))
    facts += [("the digest of all cases", one.shard.stream[:12], other.shard.stream[:12])]
    yield from ((name, str(ours), str(theirs)) for name, ours, theirs in facts if ours != theirs)


def _words(contracts: Mapping[str, str]) -> str:
    return " ".join(f"{dtype}={preset}" for dtype, preset in sorted(contracts.items()))


class _Whole:
    """The shards of one target's run, added up."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = sorted(parts, key=lambda part: part.shard.part)
        self._first = self._parts[0]
        have = {part.shard.part for part in parts}
        self._missing = [each for each in range(1, self._first.shard.parts + 1) if each not in have]
        self._of: dict[VerdictKey, list[tuple[Part, Sums]]] = {}
        for part in self._parts:
            for sums in part.shard.sums:
                self._of.setdefault(VerdictKey(sums.property_name, sums.kernel, sums.dtype), []).append((part, sums))
        self._sums = {key: functools.reduce(operator.add, (sums for _, sums in own)) for key, own in self._of.items()}

    def report(self) -> Report:
        """The report of the whole run; a missing shard makes it inconclusive."""
        reports, first = [part.report for part in self._parts], self._first.report
        verdicts = self._verdicts()
        faults = grouped(verdicts)
        leave_open(verdicts, first.fail_on)
        report = replace(
            first,
            environment=_together(report.environment for report in reports),
            verdicts=verdicts,
            faults=diagnosed(faults, verdicts),
            goals=self._in_order([report.goals for report in reports]),
            goals_wanted=_largest(report.goals_wanted for report in reports),
            cases_planned=self._first.shard.cases,
            cases_run=sum(report.cases_run for report in reports),
            seconds=sum(report.seconds for report in reports),
            refusals=self._refusals(),
            interrupted="; ".join(
                f"shard {part.shard}: {part.report.interrupted}" for part in self._parts if part.report.interrupted
            ),
            cases_judged=sum(report.cases_judged for report in reports),
            cases_alarming=sum(report.cases_alarming for report in reports),
            measurements=_measured(report.measurements for report in reports),
            shard=None,
            planned=_sum(report.planned for report in reports),
            judged=_sum(report.judged for report in reports),
            stopped=_largest(report.stopped for report in reports),
            seconds_compiling=sum(report.seconds_compiling for report in reports),
            longest_compilation=max(report.longest_compilation for report in reports),
        )
        report.unmet = self._unmet(report)
        return report

    def _unmet(self, report: Report) -> list[str]:
        shard = self._first.shard
        undefined = {int(place): what for part in self._parts for place, what in part.shard.undefined.items()}
        missing = [f"{each}/{shard.parts}" for each in self._missing]
        lacking = [f"shard {', '.join(missing)} of {report.target} is missing; expected all {shard.parts}"]
        return [
            *(lacking if missing else []),
            *shortfall(
                report.verdicts,
                self._sums,
                decisive=shard.decisive,
                require=shard.require,
                undefined=[undefined[place] for place in sorted(undefined)],
                cases=report.cases_run,
                sizes=shard.sizes,
            ),
        ]

    def _verdicts(self) -> list[Verdict]:
        known = {verdict.key: verdict for part in self._parts for verdict in part.report.verdicts}
        verdicts = [verdict_of(sums, self._counterexample(key)) for key, sums in self._sums.items()]
        for verdict in verdicts:
            like, decisive = known[verdict.key], verdict.property_name in self._first.shard.decisive
            complete(verdict, like, self._sums[verdict.key], decisive=decisive, cut=self._is_cut())
            verdict.contract, verdict.declared = like.contract, like.declared
            if verdict.counterexample is not None and verdict.counterexample.pooled:
                command = f"{self._first.shard.commands[verdict.kernel]} --property {verdict.property_name}"
                verdict.counterexample = replace(verdict.counterexample, command=command)
        settle_pooled(verdicts)
        return verdicts

    def _is_cut(self) -> bool:
        return bool(self._missing) or any(part.report.interrupted for part in self._parts)

    def _counterexample(self, key: VerdictKey) -> Counterexample | None:
        """That of the shard whose failing case comes first in the stream, with the findings of the largest cases."""
        for status in FAILING:
            failing = [(part, sums) for part, sums in self._of[key] if status.value in sums.statuses]
            failing.sort(key=lambda each: each[1].statuses[status.value].first)
            shown = [found for part, _ in failing if (found := _shown(part, key, status)) is not None]
            if shown:
                known = {each.edited_definition for each in shown} - {NO_EDIT}
                edited = known.pop() if len(known) == 1 else NO_EDIT  # shards that found another one disagree
                return mapped(replace(shown[0], edited_definition=edited, further=_further(key, failing)))
        return None

    def _in_order(self, several: Sequence[Mapping[str, int]]) -> dict[str, int]:
        """Counts by name, added up, in stream order."""
        sums = _sum(several)
        return {name: sums[name] for name in sorted(sums, key=self._place)}

    def _place(self, name: str) -> tuple[int, int]:
        """The position of the first case of something, and its place within that case."""
        firsts = (part.shard.first for part in self._parts if name in part.shard.first)
        return min(((first[name], list(first).index(name)) for first in firsts), default=(0, 0))

    def _refusals(self) -> dict[str, dict[str, int]]:
        tables: dict[str, Counter[str]] = {}
        for part in self._parts:
            for message, marks in part.report.refusals.items():
                tables.setdefault(message, Counter()).update(marks)
        return {message: dict(tables[message]) for message in sorted(tables, key=self._place)}


def _shown(part: Part, key: VerdictKey, status: Status) -> Counterexample | None:
    """A shard's counterexample of a verdict; None where its cases fail only when pooled."""
    own = (
        v
        for v in part.report.verdicts
        if v.key == key and (v.status is status or (v.is_open and status is Status.VIOLATED))
    )
    return next((v.counterexample for v in own if v.counterexample and not v.counterexample.pooled), None)


def _further(key: VerdictKey, failing: Iterable[tuple[Part, Sums]]) -> tuple[Finding, ...]:
    """The violations found on the cases with the most elements, over all shards."""
    seen: list[tuple[int, int, tuple[Finding, ...]]] = []
    for part, sums in failing:
        found = _shown(part, key, Status.VIOLATED)
        findings = iter(found.further if found is not None else ())
        for case in sums.telling if found is not None and found.further else ():
            seen.append((-case.elements, case.place, tuple(next(findings) for _ in range(case.findings))))
    seen.sort(key=lambda each: each[:2])
    return tuple(finding for _, _, wrong in seen[:TELLING] for finding in wrong)


def _together(several: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The environments of the shards, each fact once."""
    facts: dict[str, dict[str, None]] = {}
    for each in several:
        for name, fact in each.items():
            facts.setdefault(name, {})[fact] = None
    return {name: "; ".join(found) for name, found in facts.items()}


def _measured(several: Iterable[Measurements | None]) -> Measurements | None:
    """The measurements of all shards; None where there are none."""
    known = [each for each in several if each is not None]
    return functools.reduce(operator.add, known) if known else None


def _sum(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The numbers of each name, added up."""
    return functools.reduce(together, several, {})


def _largest(several: Iterable[Mapping[str, N]]) -> dict[str, N]:
    """The largest number of each name."""
    found: dict[str, N] = {}
    for each in several:
        for name, number in each.items():
            found[name] = max(found.get(name, number), number)
    return found
