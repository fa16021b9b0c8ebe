"""Results of campaigns added up: cases, alarms, and an upper bound on the rate of alarms, as a table in markdown."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradoracle.model.errors import UsageError
from gradoracle.model.wording import counted

sys.path.insert(0, str(Path(__file__).resolve().parent))
from campaign_rows import Row

CONFIDENCE = 0.95
_PREFACE = """How often does gradoracle report a correct kernel? Kernels that are known to be correct, shipped and
outside ones, were judged by `{properties}`: forward, VJP, JVP and HVP. `python benchmarks/campaign.py --table`
writes this page from the rows of benchmarks/results/campaigns.csv.

An *alarm* is a case on which a property is violated or the kernel crashes: either a false alarm, or a fault of the
kernel; `gradoracle replay 'CASE' --oracle certified` decides which. A verdict that is violated only by all cases of a
dtype together (bias or spread, pooled within each shard) has no case of its own and is counted as *pooled*. A case is
*judged* if some property was decided on it; a case that was refused, or whose budget was too wide for every property,
is in neither number. *Tensors*: how many were compared. *Rate*: the exact one-sided 95 % upper bound on the rate of
judged cases that raise an alarm (Clopper-Pearson; 1 - 0.05^(1/n) where none does), rounded up, treating cases as
independent draws from the stream of their line. Lines of one family draw from the same stream, so their bounds are not
independent of one another.

*Widened*: on how many cases `{widened}` was decided, in runs of that property alone
(`python benchmarks/campaign.py --widened`): the kernel with every float in float64 compared with the definition in
float64. *Worst widened*: the largest error in sigma."""
_WIDENED = ("widened", "alarms widened", "worst widened")
_HEAD = ("line", "device", "cases", "judged", "verdicts", "tensors", "alarms", "rate", *_WIDENED)
_SUPERSEDED = """Superseded runs used kernels or budgets that were fixed because of these alarms (docs/decisions.md).
None counts above; the same cases were run again afterwards, or are named above as missing. Their alarms:"""


def upper_bound(alarms: int, cases: int, confidence: float = CONFIDENCE) -> float:
    """The exact one-sided upper bound on the rate of cases that raise an alarm (Clopper and Pearson).

    It is the rate p at which P(X <= alarms; cases, p) is 1 - confidence; 1 without cases, or if every case alarms.

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
    """P(X <= alarms) for X binomially distributed over ``cases`` at ``rate``, whose logarithms do not overflow."""
    logs = [
        math.lgamma(cases + 1) - math.lgamma(k + 1) - math.lgamma(cases - k + 1)
        + k * math.log(rate) + (cases - k) * math.log1p(-rate)
        for k in range(alarms + 1)
    ]  # fmt: skip
    return math.fsum(map(math.exp, logs))


@dataclass(frozen=True)
class Total:
    """The runs of one line on one device: of each seed its shards, as far as they were run."""

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
    def place(self) -> tuple[str, str]:
        """The line and the device."""
        return self.parts[0].line, self.parts[0].device

    @property
    def widened(self) -> bool:
        return self.parts[0].widened

    @property
    def name(self) -> str:
        return _where(self.parts[0])

    @property
    def verdicts(self) -> int:
        return len({(v.property_name, v.kernel, v.dtype) for part in self.parts for v in part.verdicts})

    @property
    def missing(self) -> list[str]:
        """The shards that were not run."""
        found = []
        for seed, parts in _by_seed(self.parts).items():
            whole, of = parts[0].shard[1], f" of seed {seed}" if seed else ""
            there = {part.shard[0] for part in parts}
            found += [f"{place}/{whole}{of}" for place in range(1, whole + 1) if place not in there]
        return found


def totals(rows: Sequence[Row], lines: Sequence[str]) -> list[Total]:
    """Rows grouped by line and device, widened ones apart, in the order of ``lines``; superseded rows are left out.

    Raises:
        UsageError: nothing was run, or two rows hold the same cases or belong to different runs.
    """
    groups: dict[tuple[int, str, bool], list[Row]] = {}
    for each in sorted((row for row in rows if not row.superseded), key=lambda row: (row.seed, row.shard)):
        groups.setdefault((lines.index(each.line), each.device, each.widened), []).append(each)
    if not groups:
        raise UsageError("--table: nothing was run; expected rows that a campaign wrote, not superseded")
    for group in groups.values():
        _require_one_run(group)
    return [Total(tuple(groups[key])) for key in sorted(groups)]


def _where(row: Row) -> str:
    return f"{row.line}{' widened' if row.widened else ''} on {row.device}"


def _by_seed(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """The rows of each stream of cases: of different seeds, they have no cases in common."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.seed, []).append(row)
    return found


def _require_one_run(parts: Sequence[Row]) -> None:
    """Refuse runs of a line under different contracts, and shards that are not distinct parts of one stream."""
    if len({each.contracts for each in parts}) > 1:
        raise UsageError(f"{_where(parts[0])}: its runs have different contracts, so they do not add up")
    for own in _by_seed(parts).values():
        _require_one_stream(own)


def _require_one_stream(parts: Sequence[Row]) -> None:
    where = _where(parts[0])
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
    if len({each.cases for each in parts if each.cases is not None}) > 1:
        raise UsageError(f"{where}: its shards have different numbers of cases, so they do not add up")


def sentence(row: Row) -> str:
    """The result of one run in a sentence."""
    judged = f"{row.run} of {row.planned} cases ran, {row.judged} judged"
    verdicts = f"{len(row.alarms)} of {len(row.verdicts)} verdicts are alarms"
    return f"{judged}, {row.alarming} alarms (rate at most {_rate(row.alarming, row.judged)}), {verdicts}"


def markdown(totals: Sequence[Total], properties: tuple[str, str], earlier: Sequence[Row] = ()) -> str:
    """The page: what counts as an alarm, one row for each line and device, every alarm, and those of ``earlier``.

    Args:
        totals: of all runs.
        properties: the properties that judged, and that of the widened kernel.
        earlier: superseded rows.
    """
    own = [total for total in totals if not total.widened]
    widened = [total for total in totals if total.widened]
    sentences = [f"{_alarming(own)} judged cases of {len(own)} lines"] if own else []
    sentences += [f"{_alarming(widened)} widened cases of {len(widened)} lines"] if widened else []
    return "\n".join(
        [
            "# False alarms",
            "",
            _PREFACE.format(properties=properties[0], widened=properties[1]),
            "",
            f"{'; '.join(sentences)}.",
            "",
            f"| {' | '.join(_HEAD)} |",
            "|---" * len(_HEAD) + "|",
            *_rows(own, widened),
            "",
            *_notes(totals),
            *_alarms(totals),
            *_superseded(earlier),
            *_runs(totals),
        ]
    )


def _alarming(totals: Sequence[Total]) -> str:
    alarms = sum(total.alarming for total in totals)
    return f"{counted(alarms, 'alarm')} on {sum(total.judged for total in totals)}"


def _rows(own: Sequence[Total], widened: Sequence[Total]) -> list[str]:
    """A row for each line and device: its runs as written, then the widened ones."""
    left = {total.place: _cells(total) for total in own}
    right = {total.place: _widened_cells(total) for total in widened}
    none = [""] * (len(_HEAD) - 2 - len(_WIDENED)), [""] * len(_WIDENED)
    return [
        f"| {' | '.join((*place, *left.get(place, none[0]), *right.get(place, none[1])))} |"
        for place in [*left, *(place for place in right if place not in left)]
    ]


def _cells(total: Total) -> list[str]:
    older = any(each.counted is None for each in total.parts)
    judged = f"at least {total.judged}" if older and total.judged < total.run else str(total.judged)
    tensors = "" if total.tensors is None else str(total.tensors)
    rate = _rate(total.alarming, total.judged)
    return [_ran(total), judged, str(total.verdicts), tensors, _alarms_of(total), rate]


def _widened_cells(total: Total) -> list[str]:
    worst = max((each.sigma for each in total.parts if each.sigma is not None), default=None)
    return [str(total.judged), _alarms_of(total), "" if worst is None else f"{worst:.1f}"]


def _ran(total: Total) -> str:
    """How many cases ran, of how many where it is not all."""
    cases = f"{total.run} of {total.planned}" if total.run < total.planned else str(total.run)
    if total.missing:
        there = len(total.parts)
        cases += f" ({there} of {there + len(total.missing)} shards)"
    return cases


def _alarms_of(total: Total) -> str:
    pooled = sum(each.pooled for part in total.parts for each in part.alarms)
    return f"{total.alarming}{f' and {pooled} pooled' if pooled else ''}"


def _rate(alarms: int, cases: int) -> str:
    """The bound with two digits, rounded up."""
    bound = upper_bound(alarms, cases)
    unit = 10.0 ** (math.floor(math.log10(bound)) - 1)
    return f"{math.ceil(bound / unit - 1e-9) * unit:.1e}"


def _notes(totals: Sequence[Total]) -> list[str]:
    """Remarks on what was cut, is missing, or was not counted."""
    found = []
    for total in totals:
        if total.run < total.planned:
            found.append(f"- {total.name} was cut: {total.run} of {total.planned} planned cases ran.")
        if total.missing:
            found.append(f"- {total.name} lacks the shards {', '.join(total.missing)}.")
    if any(total.tensors is None for total in totals):
        found.append("- Rows without tensors come from runs that counted neither tensors nor judged cases: *at least*.")
    return [*found, ""] if found else []


def _listed(parts: Sequence[Row]) -> list[str]:
    """Every alarm, with its property and case."""
    found = []
    for part in parts:
        for each in part.alarms:
            many = "pooled" if each.pooled else f"{each.violated + each.crashed} cases"
            case = f": `{each.case}`" if each.case else ""
            found.append(
                f"- {part.line} on {part.device}, {each.property_name}, {each.dtype}: {each.status} ({many}){case}"
            )
    return found


def _alarms(totals: Sequence[Total]) -> list[str]:
    found = _listed([part for total in totals for part in total.parts])
    return ["## Alarms", "", *found, ""] if found else []


def _superseded(earlier: Sequence[Row]) -> list[str]:
    found = [f"{line}, commit {row.environment.get('commit', 'unknown')}" for row in earlier for line in _listed([row])]
    return ["## Alarms of superseded runs", "", _SUPERSEDED, "", *found, ""] if earlier else []


def _runs(totals: Sequence[Total]) -> list[str]:
    """Command, machine and versions of each run."""
    found = []
    for total in totals:
        for each in total.parts:
            made = each.environment
            machine = made.get("gpu" if each.device == "cuda" else "cpu", "")
            versions = ", ".join(f"{name} {made[name]}" for name in ("commit", "torch", "triton") if name in made)
            command = f": `{each.command}`" if each.command else ""
            found.append(f"- {each.name}, {machine}, {versions}, {each.seconds:.0f} s{command}")
    return ["## Runs", "", *found, ""]
