"""Reports as one HTML file: the outcome, each fault with its pictures, the verdicts, the measurements.

The page is text, tables and SVG: it runs no script and fetches nothing.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gradoracle.model.error_map import ErrorMap
from gradoracle.model.finding import LOCAL_SIGMA, Finding, Outcome
from gradoracle.model.verdict import Counterexample, Report, exit_code
from gradoracle.model.wording import counted, difference, number
from gradoracle.report.shown_fault import CODE, ShownFault, extent, printable, shown_faults, tell_all
from gradoracle.report.summary import (
    MARKS,
    WEIGHTS,
    all_compared,
    cell,
    compared,
    contracts,
    derivatives,
    device,
    extent_of,
    goals,
    of_all,
    outcome,
    refused,
    table,
    unchecked,
    weight,
)

MOST_PICTURES = 24  # of faults on a page; each takes a tenth of a second
_STATES = {0: "holds", 1: "violated", 3: "open", 4: "open"}  # by exit code
_MOST_TENSORS = 4  # of a counterexample that have pictures


@dataclass(frozen=True)
class Picture:
    """A plot and its caption."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Wrong:
    """A wrong tensor's worst element."""

    tensor: str
    place: str
    got: str
    true: str
    sigma: str
    budget: str


def render(reports: Sequence[Report]) -> str:
    """The reports of a run as one page.

    Raises:
        ImportError: jinja2 or matplotlib is not installed.
    """
    code = exit_code(reports)
    heading = outcome(reports[0]) if len(reports) == 1 else of_all(reports)
    if reports and reports[0].comparison is not None:
        heading = all_compared(reports)
    text: str = _template().render(
        heading=heading, code=code, state=_STATES[code], mark=MARKS[code], reports=_pages(reports), most=MOST_PICTURES
    )
    return "\n".join(line for line in text.splitlines() if line.strip()) + "\n"


def _pages(reports: Sequence[Report]) -> list[_Page]:
    """The contents for each report; those with faults share the pictures of a page."""
    broken = sum(bool(shown_faults(report)) for report in reports)
    return [_Page(report, MOST_PICTURES // max(broken, 1)) for report in reports]


@functools.cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gradoracle.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["cell"] = lambda verdict: " ".join(cell(verdict).split())
    return environment.get_template("page.html.jinja")


class _Page:
    """The contents for one report, with at most ``pictures`` pictures of its faults."""

    def __init__(self, report: Report, pictures: int) -> None:
        self.report = report
        self.state, self.mark = _STATES[report.exit_code], MARKS[report.exit_code]
        self.heading, self.extent = outcome(report), extent_of(report)
        self.lines = [
            (WEIGHTS[line.weight], line.weight.value, f"{line.kind.value}: {line.text}") for line in compared(report)
        ]
        self.reasons = report.inconclusive(lines=False)
        self.blocking = report.exit_code == 4
        self.facts = {
            "family": report.family,
            "kernels": ", ".join(report.kernels),
            "derivatives": "; ".join(derivatives(report)),
            "device": device(report),
            "seed": str(report.seed),
            "contracts": contracts(report),
        }
        self.faults: list[_Fault] = []
        for fault in shown_faults(report):
            self.faults.append(_Fault(report, fault, pictures))
            pictures -= len(self.faults[-1].pictures)
        self.table = table(report)
        self.unchecked = [(each.count, str(each)) for each in unchecked(report)]
        self.goals = goals(report)
        self.missed = sum(goal.is_missed for goal in self.goals)
        self.refusals = refused(report)
        self.notes = list(report.notes)
        self.notes += list(dict.fromkeys(note for verdict in report.verdicts for note in verdict.notes))
        self.pictures = list(_measured(report))


class _Fault:
    """The contents for one fault."""

    def __init__(self, report: Report, fault: ShownFault, pictures: int) -> None:
        lead = fault.lead
        self.status, self.property_name, self.extent = fault.state, lead.property_name, extent(lead)
        self.where = f"{lead.kernel}, {lead.dtype}"
        self.state = "violated" if weight(report, fault).value == "red" else "note"
        self.lines = [(label, text, label in CODE) for label, text in tell_all(fault)]
        shown = [each.counterexample for each in (lead, fault.specific) if each is not None and each.counterexample]
        self.wrong = [wrong for each in shown for wrong in _wrong(each)]
        self.pictures = list(itertools.islice(_pictures(shown), max(pictures, 0)))
        self.is_drawn = bool(self.pictures) or not any(_drawable(shown))


def _wrong(shown: Counterexample) -> Iterable[Wrong]:
    """The worst element of each wrong tensor of the smallest case."""
    for found in shown.findings:
        worst = found.worst
        if found.outcome is not Outcome.VIOLATED or worst is None:
            continue
        if not (math.isnan(worst.got) and math.isnan(worst.true)):  # a place alone, without values
            place = f"[{', '.join(map(str, worst.index))}]"
            sigma, budget = f"{worst.error_in_sigma:.3g}", f"{found.error:.3g}"
            apart = difference(worst.got, worst.true)
            true = f"{number(worst.true)}{f' (difference {apart})' if apart else ''}"
            yield Wrong(found.tensor, place, number(worst.got), true, sigma, budget)


def _pictures(shown: Sequence[Counterexample]) -> Iterable[Picture]:
    """For each of up to four wrong tensors, on the case with the most elements: its error map, and got against true."""
    from gradoracle.report import plots

    for found, map in _drawable(shown):
        tensor = found.tensor
        yield Picture(plots.error(map), _of_map(tensor, map, found))
        if map.pairs:
            yield Picture(
                plots.against(map.pairs, tensor),
                f"{tensor}, got against true: its worst elements, others from the smallest truth to the largest",
            )


def _drawable(shown: Sequence[Counterexample]) -> Iterator[tuple[Finding, ErrorMap]]:
    """The first map of each of up to four wrong tensors."""
    drawn: set[str] = set()
    for each in shown:
        for found in (*each.findings, *each.first_findings, *each.further):
            if found.map is not None and found.tensor not in drawn and len(drawn) < _MOST_TENSORS:
                drawn.add(found.tensor)
                yield found, found.map


def _of_map(tensor: str, map: ErrorMap, found: Finding) -> str:
    """The caption of an error map."""
    sizes = ", ".join(f"{axis} = {size}" for axis, size in zip(map.axes, map.shape, strict=True) if axis)
    over = f", the largest over {' and '.join(map.over)}" if map.over else ""
    tiles = [_of_tiles(map, side) for side in (0, 1) if map.tiles[side]] or [
        "the kernel declares no tiles of these dims"
    ]
    where = f"; {found.place}" if found.place else ""
    grey = "; grey: not compared" if any("?" in row for row in map.rows) else ""
    return f"{tensor}, error in sigma ({sizes}{over}){where}; {' and '.join(tiles)}{grey}"


def _of_tiles(map: ErrorMap, side: int) -> str:
    axis, tile = map.axes[side], map.tiles[side]
    if tile >= map.shape[side]:
        return f"one tile covers all of {axis}"
    return f"{'dashed: ' if map.edges(side) else ''}tiles end every {tile} of {axis}"


def _measured(report: Report) -> Iterable[Picture]:
    """How well budgets fit, how errors grow with the length, how finite differences converge."""
    from gradoracle.report import plots

    measured = report.measurements
    if measured is None:
        return
    if measured.spread:
        total = sum(map(sum, measured.spread.values()))
        yield Picture(
            plots.spread(measured.spread),
            f"calibration: {counted(total, 'tensor')} compared with the truth, by rms error in sigma; dashed: 1, one "
            "standard deviation of what rounding explains",
        )
    lost = sum(math.isinf(point.in_sigma) for point in measured.growth)
    if any(0 < point.in_sigma < math.inf for point in measured.growth):
        yield Picture(
            plots.growth(measured.growth, measured.dim),
            f"the largest error in sigma against {measured.dim}{f', {lost} more infinite' if lost else ''}; "
            f"dashed: {LOCAL_SIGMA:.0f}, the limit of each element apart from the uncertainty of its truth",
        )
    curves = [curve for curve in measured.convergence if all(worst > 0 for _, worst in curve.steps)]
    if curves:
        yield Picture(
            plots.convergence(curves),
            f"HVP by central differences of the VJP in float64: {len(curves)} of "
            f"{counted(measured.differences, 'gradient')}, errors at h, 2h and 4h; dashed: the second order "
            "of a correct backward",
        )
