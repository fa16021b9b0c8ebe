"""Results of campaigns added up: cases, alarms and how often a case may alarm at most, as a table in markdown."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradoracle.model.errors import UsageError

sys.path.insert(0, str(Path(__file__).resolve().parent))
from campaign_rows import Row

CONFIDENCE = 0.95
_PREFACE = """Written by `python benchmarks/campaign.py --table` from the rows of benchmarks/results/campaigns.csv.

Kernels that are known to be right, shipped and from outside, judged by `{laws}`: forward, VJP, JVP and HVP.
An *alarm* is a case on which a law is violated or the kernel crashes: a false one, or a fault of the kernel;
`gradoracle replay 'CASE' --oracle certified` decides which. A verdict that only all cases of a dtype together break
(bias or spread, pooled within each shard) has no case of its own and is counted as *pooled*. A case is *judged* where
some law was decided on it; one that was refused, or whose budget was too wide for all laws, is in neither number.
*Tensors*: how many were compared. *Rate*: the exact one-sided 95 % upper bound on the rate of a judged case that
alarms (Clopper-Pearson; 1 - 0.05^(1/n) where none does), rounded up, cases taken as independent draws of their
line's stream. Lines of a family draw from the same stream, so their bounds are not independent of one another."""
_MENDED = """Superseded runs are of kernels or budgets that were mended because of them (docs/decisions.md); none
counts above, and the same cases ran again afterwards or are named above as lacking. Their alarms:"""


def upper_bound(alarms: int, cases: int, confidence: float = CONFIDENCE) -> float:
    """The exact one-sided upper bound on the rate of a case that alarms (Clopper and Pearson).

    It is the rate p at which so few alarms have the probability 1 - confidence: P(X <= alarms; cases, p). 1 without
    cases, or where every case alarms.

    Raises:
        ValueError: a negative count, or more alarms than cases.
    """
    if not 0 <= alarms <= cases:
        raise ValueError(f"{alarms} alarms on {cases} cases; expected 0 <= alarms <= cases")
    if alarms == cases:
        return 1.0
    left = 1.0 - confidence
    if alarms == 0:
        return -math.expm1(math.log(left) / cases)
    low, high = alarms / cases, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _at_most(alarms, cases, middle) > left else (low, middle)
    return high


def _at_most(alarms: int, cases: int, rate: float) -> float:
    """The probability of at most so many alarms, each case alarming at a rate by itself."""
    logs = [
        math.lgamma(cases + 1) - math.lgamma(k + 1) - math.lgamma(cases - k + 1)
        + k * math.log(rate) + (cases - k) * math.log1p(-rate)
        for k in range(alarms + 1)
    ]  # fmt: skip
    return math.fsum(map(math.exp, logs))


@dataclass(frozen=True)
class Total:
    """All shards of a line on one device that are there."""

    parts: tuple[Row, ...]

    @property
    def judged(self) -> int:
        return sum(part.judged for part in self.parts)

    @property
    def alarming(self) -> int:
        return sum(part.alarming for part in self.parts)

    @property
    def run(self) -> int:
        return sum(part.run for part in self.parts)

    @property
    def planned(self) -> int:
        return sum(part.planned for part in self.parts)

    @property
    def tensors(self) -> int | None:
        counts = [part.tensors for part in self.parts]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def verdicts(self) -> int:
        return len({(v.law, v.kernel, v.dtype) for part in self.parts for v in part.verdicts})

    @property
    def missing(self) -> list[int]:
        """The shards that are not there."""
        return sorted(set(range(1, self.parts[0].shard[1] + 1)) - {part.shard[0] for part in self.parts})


def totals(rows: Sequence[Row], lines: Sequence[str]) -> list[Total]:
    """What was run, shards of one line and device added, in the order of ``lines``; nothing of what is superseded.

    Raises:
        UsageError: nothing was run, or two rows are of the same cases or of different runs.
    """
    groups: dict[tuple[int, str], list[Row]] = {}
    for each in sorted((row for row in rows if not row.superseded), key=lambda row: row.shard):
        groups.setdefault((lines.index(each.line), each.device), []).append(each)
    if not groups:
        raise UsageError("--table: nothing was run; expected rows that a campaign wrote, not superseded")
    for group in groups.values():
        _require_one_run(group)
    return [Total(tuple(groups[key])) for key in sorted(groups)]


def _require_one_run(parts: Sequence[Row]) -> None:
    """See that the shards of a line are parts of one stream, and each there once."""
    where = f"{parts[0].line} on {parts[0].device}"
    whole = {each.shard[1] for each in parts}
    if len(whole) > 1:
        names = ", ".join(each.name for each in parts)
        raise UsageError(
            f"{where} was split in {' and in '.join(map(str, sorted(whole)))} parts, which overlap: {names}"
        )
    places = [each.shard[0] for each in parts]
    for place in places:
        if places.count(place) > 1:
            raise UsageError(f"{where}: shard {place}/{parts[0].shard[1]} is there {places.count(place)} times")
    for what, values in (
        ("the seeds", {each.seed for each in parts}),
        ("numbers of cases", {each.cases for each in parts if each.cases is not None}),
        ("contracts", {each.contracts for each in parts}),
    ):
        if len(values) > 1:
            raise UsageError(f"{where}: its shards have different {what.removeprefix('the ')}, so they do not add up")


def sentence(row: Row) -> str:
    """What one run says, in words."""
    judged = f"{row.run} of {row.planned} cases ran, {row.judged} judged"
    verdicts = f"{len(row.alarms)} of {len(row.verdicts)} verdicts are alarms"
    return f"{judged}, {row.alarming} alarms (rate at most {_rate(row.alarming, row.judged)}), {verdicts}"


def markdown(totals: Sequence[Total], laws: str, earlier: Sequence[Row] = ()) -> str:
    """The page: what counts as an alarm, one row a line and device, and every alarm by its case; and those mended."""
    alarms = sum(total.alarming for total in totals)
    judged = sum(total.judged for total in totals)
    rows = [_row(total) for total in totals]
    return "\n".join(
        [
            "# False alarms",
            "",
            _PREFACE.format(laws=laws),
            "",
            f"{alarms} alarms on {judged} judged cases of {len(totals)} lines.",
            "",
            "| line | device | cases | judged | verdicts | tensors | alarms | rate |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            *_notes(totals),
            *_alarms(totals),
            *_mended(earlier),
            *_made(totals),
        ]
    )


def _row(total: Total) -> str:
    first = total.parts[0]
    cases = f"{total.run} of {total.planned}" if total.run < total.planned else str(total.run)
    if total.missing:
        there = first.shard[1] - len(total.missing)
        cases += f" ({there} of {first.shard[1]} shards)"
    older = any(each.counted is None for each in total.parts)
    judged = f"at least {total.judged}" if older and total.judged < total.run else str(total.judged)
    pooled = sum(each.pooled for part in total.parts for each in part.alarms)
    alarms = f"{total.alarming}{f' and {pooled} pooled' if pooled else ''}"
    tensors = "" if total.tensors is None else str(total.tensors)
    cells = (
        first.line,
        first.device,
        cases,
        judged,
        total.verdicts,
        tensors,
        alarms,
        _rate(total.alarming, total.judged),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _rate(alarms: int, cases: int) -> str:
    """The bound in two digits, rounded up."""
    bound = upper_bound(alarms, cases)
    unit = 10.0 ** (math.floor(math.log10(bound)) - 1)
    return f"{math.ceil(bound / unit - 1e-9) * unit:.1e}"


def _notes(totals: Sequence[Total]) -> list[str]:
    """What was cut, is missing, or was not counted when it ran."""
    found = []
    for total in totals:
        first = total.parts[0]
        if total.run < total.planned:
            found.append(f"- {first.line} on {first.device} was cut: {total.run} of {total.planned} planned cases ran.")
        if total.missing:
            shards = ", ".join(f"{place}/{first.shard[1]}" for place in total.missing)
            found.append(f"- {first.line} on {first.device} lacks the shards {shards}.")
    if any(total.tensors is None for total in totals):
        found.append("- Rows without tensors are of runs that did not count them, nor judged cases: *at least*.")
    return [*found, ""] if found else []


def _told(parts: Sequence[Row]) -> list[str]:
    """Every alarm, by law and case."""
    found = []
    for part in parts:
        for each in part.alarms:
            many = "pooled" if each.pooled else f"{each.violated + each.crashed} cases"
            case = f": `{each.case}`" if each.case else ""
            found.append(f"- {part.line} on {part.device}, {each.law}, {each.dtype}: {each.status} ({many}){case}")
    return found


def _alarms(totals: Sequence[Total]) -> list[str]:
    """The alarms of what counts."""
    told = _told([part for total in totals for part in total.parts])
    return ["## Alarms", "", *told, ""] if told else []


def _mended(earlier: Sequence[Row]) -> list[str]:
    """The alarms of superseded runs, with the commit that had them."""
    told = [f"{line}, commit {row.environment.get('commit', 'unknown')}" for row in earlier for line in _told([row])]
    return ["## Alarms of superseded runs", "", _MENDED, "", *told, ""] if earlier else []


def _made(totals: Sequence[Total]) -> list[str]:
    """Commands, machines and versions."""
    found = []
    for total in totals:
        for each in total.parts:
            made = each.environment
            machine = made.get("gpu" if each.device == "cuda" else "cpu", "")
            versions = ", ".join(f"{name} {made[name]}" for name in ("commit", "torch", "triton") if name in made)
            command = f": `{each.command}`" if each.command else ""
            found.append(f"- {each.name}, {machine}, {versions}, {each.seconds:.0f} s{command}")
    return ["## Runs", "", *found, ""]
