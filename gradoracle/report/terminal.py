"""Reports as text: a table of properties and dtypes, each fault in full, and what was not checked."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from gradoracle.model.comparison import Weight
from gradoracle.model.verdict import FAILING, Report, Status, exit_code
from gradoracle.report.failure import extent, failures, printable, tell_all
from gradoracle.report.precision import kept
from gradoracle.report.summary import (
    MARKS,
    WEIGHTS,
    all_compared,
    cell,
    compared,
    contracts,
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

WIDTH = 120
_LABEL = 9  # columns of a label
_MOST_REASONS = 12
_STYLES = {
    Status.HOLDS: "green",
    Status.VIOLATED: "bold red",
    Status.CRASHED: "bold red",
    Status.ERROR: "bold yellow",
    Status.REFUSED: "yellow",
    Status.NOT_CHECKED: "yellow",
}


def render(reports: Sequence[Report], *, width: int | None = None, color: bool = False) -> str:
    """The reports of a run, one below the other, and where there are several one line on all of them."""
    file = StringIO()
    console = Console(
        file=file,
        width=width or WIDTH,
        force_terminal=color,
        color_system="auto" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for report in reports:
        _report(console, report)
    if reports and reports[0].comparison is not None:
        code = exit_code(reports)
        text = f"{MARKS[code]} {printable(all_compared(reports))} (exit code {code})"
        console.print(Text(text, {0: "bold green", 1: "bold red"}.get(code, "bold yellow")))
    elif len(reports) > 1:
        code = exit_code(reports)
        text = f"{len(reports)} targets: {of_all(reports)} (exit code {code})"
        console.print(Text(text, "bold green" if code == 0 else "bold red"))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _report(console: Console, report: Report) -> None:
    if report.comparison is not None and not report.verdicts:
        _end(console, report)
        return
    _header(console, report)
    if report.verdicts:
        console.print(_table(report))
        console.print(Text("worst: largest error in sigma; b/t: median budget / |truth|, the sensitivity", "dim"))
    _failures(console, report)
    _not_checked(console, report)
    _refusals(console, report)
    _goals(console, report)
    _notes(console, report)
    _end(console, report)


def _header(console: Console, report: Report) -> None:
    console.print(
        Text.assemble(("gradoracle ", "bold"), (printable(report.target), "bold cyan"), f"  family {report.family}")
    )
    kernels = "kernel" if len(report.kernels) == 1 else "kernels"
    _line(console, kernels, ", ".join(report.kernels))
    _line(console, "device", f"{device(report)}, seed {report.seed}")
    _line(console, "contract", contracts(report))
    several = len(report.kernels) > 1
    for each in kept(report):
        _line(console, "inferred", f"{f'{each.kernel}, ' if several else ''}{each.dtype}: {each}")
    console.print()


def _table(report: Report) -> Grid:
    """A row for each property and kernel, a column for each dtype."""
    verdicts = table(report)
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    grid.add_column("property", overflow="fold", ratio=1)
    if verdicts.has_kernels:
        grid.add_column("kernel", overflow="fold")
    for dtype in verdicts.dtypes:
        grid.add_column(f"{dtype}\ncases  worst  b/t", no_wrap=True)
    for row in verdicts.rows:
        cells = [Text(cell(each), _STYLES[each.status]) if each else Text("") for each in row.verdicts]
        grid.add_row(row.law, *([row.kernel] if verdicts.has_kernels else []), *cells)
    return grid


def _failures(console: Console, report: Report) -> None:
    for failure in failures(report):
        lead = failure.lead
        red = weight(report, failure) is Weight.RED
        mark = "!" if lead.status is Status.ERROR else "✗" if red else "·"
        title = f"{mark} {failure.state.upper()}  {lead.law}"
        console.print()
        console.print(
            Text.assemble((title, "bold red" if red else "bold"), f"  {lead.kernel}, {lead.dtype}, {extent(lead)}")
        )
        for label, text in tell_all(failure):
            _line(console, label, text, whole=label in ("case", "replay", "shrunk"))


def _not_checked(console: Console, report: Report) -> None:
    """Why cases were refused or not checked, each reason with its cases and properties."""
    reasons = unchecked(report)
    if not reasons:
        return
    console.print()
    console.print(Text("not checked (cases, reason)", "bold yellow"))
    for reason in reasons[:_MOST_REASONS]:
        _line(console, str(reason.count), str(reason))
    if len(reasons) > _MOST_REASONS:
        _line(console, "", f"and {len(reasons) - _MOST_REASONS} more reasons (--format json lists all)")


def _refusals(console: Console, report: Report) -> None:
    for message, where in refused(report):
        console.print()
        console.print(Text(f"refused: {printable(message)}", "yellow"))
        _line(console, "where", where)


def _goals(console: Console, report: Report) -> None:
    """Every coverage goal with its cases; those that are missed in red, with their minimum."""
    every = goals(report)
    if not every:
        return
    entries = [
        Text(f"{goal.name}: {goal.cases} of {goal.expected} expected", "bold red")
        if goal.is_missed
        else Text(f"{goal.name}: {goal.cases}")
        for goal in every
    ]
    met = sum(not goal.is_missed for goal in every)
    console.print()
    console.print(Text(f"coverage goals: {met} of {len(every)} met", "bold"))
    console.print(Text("  ").append_text(Text("; ").join(entries)))


def _notes(console: Console, report: Report) -> None:
    collected: dict[str, list[str]] = {}
    for verdict in report.verdicts:
        if verdict.status not in FAILING:  # whose notes stand with the failure
            for note in verdict.notes:
                collected.setdefault(note, []).append(f"{verdict.law} {verdict.dtype}")
    notes = list(report.notes)
    for note, who in collected.items():
        more = f" and {len(who) - 3} more" if len(who) > 3 else ""
        notes.append(f"{note} ({', '.join(who[:3])}{more})")
    if notes:
        console.print()
    for note in notes:
        _line(console, "note", note)


def _end(console: Console, report: Report) -> None:
    code = report.exit_code
    if report.verdicts or report.comparison is None:
        console.print()
        console.print(Text(extent_of(report)))
    style = {0: "bold green", 1: "bold red"}.get(code, "bold yellow")
    console.print(Text(f"{MARKS[code]} {outcome(report)}", style))
    lines = [(f"{WEIGHTS[line.weight]} {line.kind.value}", line.text) for line in compared(report)]
    width = max((_LABEL, *(len(label) + 1 for label, _ in lines)))
    for label, text in lines:
        _line(console, label, text, width=width)
    for reason in report.inconclusive(lines=False):
        _line(console, "because" if code == 4 else "also", reason)


def _line(console: Console, label: str, text: str, whole: bool = False, width: int = _LABEL) -> None:
    """A label and its text; ``whole`` text is not wrapped, so that it can be copied."""
    label, text = printable(label), printable(text)
    head = Text(f"  {label:<{width - 1}} ", "dim" if label else "")
    if whole:
        console.print(head.append_text(Text(text, "not dim")), soft_wrap=True)
        return
    if len(label) >= width:  # a label of several words has a line of its own
        console.print(head)
        head = Text("")
    grid = Grid.grid(padding=0)
    grid.add_column(width=width + 2, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(head, Text(text))
    console.print(grid)
