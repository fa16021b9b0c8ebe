"""Reports as text to read at a glance: a table of laws and dtypes, failures in full, and what was not checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradoracle.model.comparison import Kind, Weight
from gradoracle.model.verdict import FAILING, Report, Status, Verdict
from gradoracle.report.failure import extent, failures, printable, tell_all
from gradoracle.report.formats import exit_code
from gradoracle.report.summary import (
    MARKS,
    WEIGHTS,
    all_compared,
    cell,
    compared,
    extent_of,
    of_all,
    outcome,
    refused,
    rows,
    unchecked,
    weight,
)

WIDTH = 120
_LABEL = 9  # columns of a label
_MOST_REASONS = 12
_LABELS = {
    Kind.VIOLATED: "law",
    Kind.UNCHECKED: "cover",
    Kind.ACCURACY: "sigma",
    Kind.JUDGE: "judge",
    Kind.KNOWN: "known",
    Kind.BASE: "base",
    Kind.SPEED: "speed",
}
_STYLES = {
    Status.HOLDS: "green",
    Status.VIOLATED: "bold red",
    Status.CRASHED: "bold red",
    Status.ERROR: "bold yellow",
    Status.REFUSED: "yellow",
    Status.NOT_CHECKED: "yellow",
}


def render(reports: Sequence[Report], *, width: int | None = None, color: bool = False) -> str:
    """The reports of a run, one below the other, and one line on all of them where there are several."""
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
    _situations(console, report)
    _notes(console, report)
    _end(console, report)


def _header(console: Console, report: Report) -> None:
    contracts = ", ".join(f"{dtype} as {preset}" for dtype, preset in report.contracts.items()) or "none"
    console.print(
        Text.assemble(("gradoracle ", "bold"), (printable(report.target), "bold cyan"), f"  family {report.family}")
    )
    kernels = "kernel" if len(report.kernels) == 1 else "kernels"
    _line(console, kernels, ", ".join(report.kernels))
    gpu = report.environment.get("gpu") or report.environment.get("cpu", "")
    _line(console, "device", f"{report.device}{f' ({gpu})' if gpu else ''}, seed {report.seed}")
    _line(console, "contract", contracts)
    console.print()


def _table(report: Report) -> Table:
    """A row for each law and kernel, a column for each dtype."""
    dtypes = list(dict.fromkeys(verdict.dtype for verdict in report.verdicts))
    several = len({verdict.kernel for verdict in report.verdicts}) > 1
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("law", overflow="fold", ratio=1)
    if several:
        table.add_column("kernel", overflow="fold")
    for dtype in dtypes:
        table.add_column(f"{dtype}\ncases  worst  b/t", no_wrap=True)
    for (law, kernel), row in rows(report).items():
        cells = [_cell(row[dtype]) if dtype in row else Text("") for dtype in dtypes]
        table.add_row(law, *([kernel] if several else []), *cells)
    return table


def _cell(verdict: Verdict) -> Text:
    return Text(cell(verdict), _STYLES[verdict.status])


def _failures(console: Console, report: Report) -> None:
    for failure in failures(report):
        lead = failure.lead
        red = weight(report, failure) is Weight.RED
        mark = "!" if lead.status is Status.ERROR else "✗" if red else "·"
        title = f"{mark} {lead.status.value.upper()}  {lead.law}"
        console.print()
        console.print(
            Text.assemble((title, "bold red" if red else "bold"), f"  {lead.kernel}, {lead.dtype}, {extent(lead)}")
        )
        for label, text in tell_all(failure):
            _line(console, label, text, whole=label in ("case", "replay", "shrunk"))


def _not_checked(console: Console, report: Report) -> None:
    """Reasons why cases were refused or not checked, each with its cases and laws."""
    reasons = unchecked(report)
    if not reasons:
        return
    console.print()
    console.print(Text("not checked", "bold yellow"))
    for reason in reasons[:_MOST_REASONS]:
        _line(console, str(reason.count), str(reason))
    if len(reasons) > _MOST_REASONS:
        _line(console, "", f"and {len(reasons) - _MOST_REASONS} more reasons (all are in --format json)")


def _refusals(console: Console, report: Report) -> None:
    for message, where in refused(report):
        console.print()
        console.print(Text(f"refused: {printable(message)}", "yellow"))
        _line(console, "where", where)


def _situations(console: Console, report: Report) -> None:
    """Every situation with its cases; those below their minimum in red, with the minimum."""
    names = list(dict.fromkeys([*report.situations_wanted, *report.situations]))
    if not names:
        return
    entries, missed = [], 0
    for name in names:
        have, expected = report.situations.get(name, 0), report.situations_wanted.get(name, 0)
        if have < expected:
            missed += 1
            entries.append(Text(f"{name}: {have} of {expected} expected", "bold red"))
        else:
            entries.append(Text(f"{name}: {have}"))
    console.print()
    below = f", {missed} below the minimum" if missed else ""
    console.print(Text(f"situations: {len(names) - missed} of {len(names)} covered{below}", "bold"))
    console.print(Text("  ").append_text(Text("; ").join(entries)))


def _notes(console: Console, report: Report) -> None:
    collected: dict[str, list[str]] = {}
    for verdict in report.verdicts:
        if verdict.status not in FAILING:  # those tell their notes themselves
            for note in verdict.notes:
                collected.setdefault(note, []).append(f"{verdict.law} {verdict.dtype}")
    notes = list(report.notes)
    notes += [f"{note} ({_few(who)})" for note, who in collected.items()]
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
    for line in compared(report):
        _line(console, f"{WEIGHTS[line.weight]} {_LABELS[line.kind]}", line.text)
    for reason in report.inconclusive(lines=False):
        _line(console, "because" if code == 4 else "besides", reason)


def _line(console: Console, label: str, text: str, whole: bool = False) -> None:
    """A label and its text; ``whole`` text is never broken, so that it can be copied."""
    label, text = printable(label), printable(text)
    head = Text(f"  {label:<{_LABEL - 1}} ", "dim" if label else "")
    if whole:
        console.print(head.append_text(Text(text, "not dim")), soft_wrap=True)
        return
    if len(label) >= _LABEL:  # a label of several words has a line of its own
        console.print(head)
        head = Text("")
    table = Table.grid(padding=0)
    table.add_column(width=_LABEL + 2, no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(head, Text(text))
    console.print(table)


def _few(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
