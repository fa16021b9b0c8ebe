"""Results of campaigns added up: cases, alarms and how often a case may alarm at most, as a table in markdown."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradoracle.model.errors import UsageError

CONFIDENCE = 0.95
_NAME = re.compile(r"campaign_(?P<line>\w+?)(?P<cuda>_cuda)?(?:_(?P<part>\d+)_of_(?P<parts>\d+))?\.json")
_ALARMS = ("violated", "crashed")
_SUPERSEDED = "superseded"  # the folder, in one of results, of runs whose kernel or budgets were wrong
_PREFACE = """Written by `python benchmarks/campaign.py --table FOLDER...` from the results of `make campaign`.

Kernels that are known to be right, shipped and from outside, judged by `{laws}`: forward, VJP, JVP and HVP.
An *alarm* is a case on which a law is violated or the kernel crashes: a false one, or a fault of the kernel;
`gradoracle replay 'CASE' --oracle certified` decides which. A verdict that only all cases of a dtype together break
(bias or spread, pooled within each shard) has no case of its own and is counted as *pooled*. A case is *judged* where
some law was decided on it; one that was refused, or whose budget was too wide for all laws, is in neither number.
*Tensors*: how many were compared. *Rate*: the exact one-sided 95 % upper bound on the rate of a judged case that
alarms (Clopper-Pearson; 1 - 0.05^(1/n) where none does), rounded up, cases taken as independent draws of their
line's stream. Lines of a family draw from the same stream, so their bounds are not independent of one another."""
_MENDED = """Runs in `superseded` are of kernels or budgets that were mended because of them (docs/decisions.md); none
counts above, and the same cases ran again afterwards or are named above as lacking. Their alarms:"""


def upper_bound(alarms: int, cases: int, confidence: float = CONFIDENCE) -> float:
    """The exact one-sided upper bound on the rate of a case that alarms (Clopper and Pearson).

    It is the rate p at which so few alarms have the probability 1 - confidence: P(X <= alarms; cases, p). 1 without
    cases, or where every case alarms.

    Raises:
        ValueError: a negative count, or more alarms than cases.
    """
    if not 0 <= alarms <= cases:
        raise ValueError(f"{alarms} alarms on {cases} cases; wanted 0 <= alarms <= cases")
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
class Part:
    """One file of results: one shard of a line, on one device.

    Attributes:
        line: its name.
        device: cpu or cuda.
        shard: (i, n).
        file: its name.
        report: of the one target, as ``gradoracle check --format json`` writes it.
        campaign: what ran it; empty in files older than that.
    """

    line: str
    device: str
    shard: tuple[int, int]
    file: str
    report: Mapping[str, Any]
    campaign: Mapping[str, Any]

    @property
    def judged(self) -> int:
        """Cases on which some law was decided; of older files, the least that it can be."""
        if "cases_judged" in self.report:
            return int(self.report["cases_judged"])
        most: dict[str, int] = {}
        for verdict in self.report["verdicts"]:
            decided = sum(verdict[f"cases_{status}"] for status in ("held", *_ALARMS))
            most[verdict["dtype"]] = max(most.get(verdict["dtype"], 0), decided)
        return sum(most.values())

    @property
    def alarming(self) -> int:
        """Cases with an alarm; of older files, the most that it can be."""
        if "cases_alarming" in self.report:
            return int(self.report["cases_alarming"])
        found = sum(verdict[f"cases_{status}"] for verdict in self.report["verdicts"] for status in _ALARMS)
        return min(found, self.judged)

    @property
    def tensors(self) -> int | None:
        """Tensors compared; None in older files."""
        counts = [verdict.get("tensors_compared") for verdict in self.report["verdicts"]]
        return None if None in counts else sum(counts)

    @property
    def alarms(self) -> list[Mapping[str, Any]]:
        """The verdicts that are alarms."""
        return [verdict for verdict in self.report["verdicts"] if verdict["status"] in _ALARMS]


@dataclass(frozen=True)
class Total:
    """All shards of a line on one device that are there."""

    parts: tuple[Part, ...]

    @property
    def judged(self) -> int:
        return sum(part.judged for part in self.parts)

    @property
    def alarming(self) -> int:
        return sum(part.alarming for part in self.parts)

    @property
    def run(self) -> int:
        return sum(part.report["cases_run"] for part in self.parts)

    @property
    def planned(self) -> int:
        return sum(part.report["cases_planned"] for part in self.parts)

    @property
    def tensors(self) -> int | None:
        counts = [part.tensors for part in self.parts]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def verdicts(self) -> int:
        return len({(v["law"], v["kernel"], v["dtype"]) for part in self.parts for v in part.report["verdicts"]})

    @property
    def missing(self) -> list[int]:
        """The shards that are not there."""
        return sorted(set(range(1, self.parts[0].shard[1] + 1)) - {part.shard[0] for part in self.parts})


def part(file: Path, lines: Sequence[str]) -> Part:
    """Read one file of results.

    Raises:
        UsageError: its name or its content is none of a campaign, or one does not fit the other.
    """
    match = _NAME.fullmatch(file.name)
    if match is None or match["line"] not in lines:
        raise UsageError(f"{file.name}: wanted campaign_LINE[_cuda][_I_of_N].json, LINE one of {', '.join(lines)}")
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        (report,) = document["reports"]
        device = str(report["device"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{file.name} holds no report of one target; wanted what a campaign wrote") from None
    shard = (int(match["part"] or 1), int(match["parts"] or 1))
    campaign = document.get("campaign", {})
    if device != ("cuda" if match["cuda"] else "cpu"):
        raise UsageError(f"{file.name} was run on {device}; its name says otherwise")
    if campaign and (campaign["line"], tuple(campaign["shard"])) != (match["line"], shard):
        own = "{}, shard {}/{}".format(campaign["line"], *campaign["shard"])
        raise UsageError(f"{file.name} holds {own}; its name says otherwise")
    return Part(match["line"], device, shard, file.name, report, campaign)


def totals(folders: Sequence[Path], lines: Sequence[str]) -> list[Total]:
    """Everything in some folders, shards of one line and device added, in the order of ``lines``.

    Raises:
        UsageError: no file is there, or two are of the same cases or of different runs.
    """
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"--table {folder} is no folder")
    parts = [part(file, lines) for folder in folders for file in sorted(folder.glob("campaign_*.json"))]
    if not parts:
        raise UsageError(f"--table {' '.join(map(str, folders))}: no campaign_*.json is there")
    groups: dict[tuple[int, str], list[Part]] = {}
    for each in sorted(parts, key=lambda each: each.shard):
        groups.setdefault((lines.index(each.line), each.device), []).append(each)
    for group in groups.values():
        _require_one_run(group)
    return [Total(tuple(groups[key])) for key in sorted(groups)]


def superseded(folders: Sequence[Path], lines: Sequence[str]) -> list[Total]:
    """The runs in the folders' own ``superseded``, one by one: they may overlap, and nothing is added up."""
    files = [file for folder in folders for file in sorted((folder / _SUPERSEDED).glob("campaign_*.json"))]
    return [Total((part(file, lines),)) for file in files]


def _require_one_run(parts: Sequence[Part]) -> None:
    """See that the shards of a line are parts of one stream, and each there once."""
    where = f"{parts[0].line} on {parts[0].device}"
    whole = {each.shard[1] for each in parts}
    if len(whole) > 1:
        names = ", ".join(each.file for each in parts)
        raise UsageError(
            f"{where} was split in {' and in '.join(map(str, sorted(whole)))} parts, which overlap: {names}"
        )
    places = [each.shard[0] for each in parts]
    for place in places:
        if places.count(place) > 1:
            raise UsageError(f"{where}: shard {place}/{parts[0].shard[1]} is there {places.count(place)} times")
    for what, values in (
        ("the seeds", {each.report["seed"] for each in parts}),
        ("numbers of cases", {each.campaign["cases"] for each in parts if each.campaign}),
        ("contracts", {json.dumps(each.report["contracts"], sort_keys=True) for each in parts}),
    ):
        if len(values) > 1:
            raise UsageError(f"{where}: its shards have different {what.removeprefix('the ')}, so they do not add up")


def sentence(document: Mapping[str, Any]) -> str:
    """What one file says, in words."""
    (report,) = document["reports"]
    own = Part("", report["device"], (1, 1), "", report, {})
    judged = f"{report['cases_run']} of {report['cases_planned']} cases ran, {own.judged} judged"
    verdicts = f"{len(own.alarms)} of {len(report['verdicts'])} verdicts are alarms"
    return f"{judged}, {own.alarming} alarms (rate at most {_rate(own.alarming, own.judged)}), {verdicts}"


def markdown(totals: Sequence[Total], laws: str, earlier: Sequence[Total] = ()) -> str:
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
            *_told(totals),
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
    older = any("cases_judged" not in each.report for each in total.parts)
    judged = f"at least {total.judged}" if older and total.judged < total.run else str(total.judged)
    pooled = sum(1 for each in total.parts for v in each.alarms if _is_pooled(v))
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


def _is_pooled(verdict: Mapping[str, Any]) -> bool:
    shown = verdict.get("counterexample")
    return bool(shown and shown["pooled"])


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


def _told(totals: Sequence[Total]) -> list[str]:
    """Every alarm, by law and case."""
    found = []
    for total in totals:
        for each in total.parts:
            for verdict in each.alarms:
                shown = verdict.get("counterexample")
                cases = verdict["cases_violated"] + verdict["cases_crashed"]
                many = "pooled" if _is_pooled(verdict) else f"{cases} cases"
                case = f": `{shown['case']}`" if shown else ""
                where = f"{each.line} on {each.device}, {verdict['law']}, {verdict['dtype']}"
                found.append(f"- {where}: {verdict['status']} ({many}){case}")
    return ["## Alarms", "", *found, ""] if found else []


def _mended(earlier: Sequence[Total]) -> list[str]:
    """The alarms of superseded runs, with the commit that had them."""
    told = []
    for total in earlier:
        commit = total.parts[0].report["environment"].get("commit", "unknown")
        told += [f"{line}, commit {commit}" for line in _told([total])[2:-1]]
    return ["## Alarms of superseded runs", "", _MENDED, "", *told, ""] if earlier else []


def _made(totals: Sequence[Total]) -> list[str]:
    """Commands, machines and versions."""
    found = []
    for total in totals:
        for each in total.parts:
            made = each.report["environment"]
            machine = made.get("gpu" if each.device == "cuda" else "cpu", "")
            versions = ", ".join(f"{name} {made[name]}" for name in ("commit", "torch", "triton") if name in made)
            command = f": `{each.campaign['command']}`" if each.campaign else ""
            found.append(
                f"- {each.file.removesuffix('.json')}, {machine}, {versions}, {each.report['seconds']:.0f} s{command}"
            )
    return ["## Runs", "", *found, ""]
