"""Reports as text: faults, a table of properties and dtypes, and what was not checked; in few lines unless verbose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from gradoracle.model.comparison import Weight
from gradoracle.model.property import PropertyKind
from gradoracle.model.verdict import FAILING, Report, Status, exit_code
from gradoracle.model.wording import counted
from gradoracle.report.shown_fault import ShownFault, extent, printable, shown_faults, tell_all
from gradoracle.report.summary import (
    MARKS,
    WEIGHTS,
    Row,
    all_compared,
    cell,
    compared,
    contracts,
    derivatives,
    device,
    extent_of,
    goals,
    kept,
    of_all,
    outcome,
    refused,
    table,
    unchecked,
    weight,
)

WIDTH = 120
LINES = 60  # at most, of a report with faults that is not verbose and compares with no base
_LABEL = 9  # columns of a label
_MOST_REASONS, _FEW_REASONS = 12, 3
_MOST_FAULTS = 5  # in such a report, the first in full
_MOST_NAMED = 3  # other properties of a fault there
_LEAST_ROWS, _MOST_UNDECIDED = 4, 3  # of its tables
_MOST_WRAPPED, _MOST_WRAPPED_IN_BRIEF = 4, 2  # lines of one text there
_STYLES = {
    Status.HOLDS: "green",
    Status.VIOLATED: "bold red",
    Status.CRASHED: "bold red",
    Status.ERROR: "bold yellow",
    Status.REFUSED: "yellow",
    Status.NOT_CHECKED: "yellow",
}


def render(reports: Sequence[Report], *, width: int | None = None, color: bool = False, verbose: bool = False) -> str:
    """The reports of a run, one below the other, and where there are several one line on all of them.

    Args:
        reports: the reports of a run.
        width: columns; None: ``WIDTH``.
        color: whether escape sequences may be used.
        verbose: every fault in full, every property, reason and goal, also where there are faults.
    """
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
        _report(console, report, verbose)
    if reports and reports[0].comparison is not None:
        code = exit_code(reports)
        text = f"{MARKS[code]} {printable(all_compared(reports))} (exit code {code})"
        console.print(Text(text, {0: "bold green", 1: "bold red"}.get(code, "bold yellow")))
    elif len(reports) > 1:
        code = exit_code(reports)
        text = f"{len(reports)} targets: {of_all(reports)} (exit code {code})"
        console.print(Text(text, "bold green" if code == 0 else "bold red"))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _report(console: Console, report: Report, verbose: bool) -> None:
    if report.comparison is not None and not report.verdicts:
        _end(console, report)
        return
    found = shown_faults(report)
    if found and not verbose:
        _in_brief(console, report, found)
        return
    _header(console, report)
    for fault in found:
        _fault(console, report, fault)
    if report.verdicts:
        console.print()
        rows = table(report).rows
        _properties(console, report, rows if verbose else _compared(rows), left=not verbose)
    _not_checked(console, report, _MOST_REASONS if verbose else _FEW_REASONS)
    _refusals(console, report)
    _goals(console, report, verbose)
    _notes(console, report)
    _end(console, report)


def _compared(rows: Sequence[Row]) -> list[Row]:
    """The rows that compare with the truth; all of a report that has none."""
    own = [row for row in rows if any(each is not None and each.kind is PropertyKind.ORACLE for each in row.verdicts)]
    return own or list(rows)


def _in_brief(console: Console, report: Report, found: Sequence[ShownFault]) -> None:
    """A report with faults: the first in full, some in brief, violated and undecided properties, what else there is."""
    with _captured(console) as head:
        _header(console, report)
    with _captured(console) as end:
        _undecided(console, report)
        _missed(console, report)
        _end(console, report)
    blocks = []
    for place, fault in enumerate(found[:_MOST_FAULTS]):
        with _captured(console) as block:
            _fault(console, report, fault, _MOST_WRAPPED_IN_BRIEF if place else _MOST_WRAPPED)
        blocks.append(block)
    rows = [row for row in table(report).rows if row.is_failing]
    room = LINES - len(head) - len(end) - 3  # what is left out, an empty line
    while len(blocks) > 1 and sum(map(len, blocks)) + len(_rows(console, report, rows[:_LEAST_ROWS], rows)) > room:
        blocks.pop()
    shown = rows
    while len(shown) > 1 and (over := sum(map(len, blocks)) + len(_rows(console, report, shown, rows)) - room) > 0:
        shown = shown[: -max(1, over // 3)] or rows[:1]  # a row may take several lines
    for block in (head, *blocks):
        _write(console, block)
    if more := len(found) - len(blocks):
        console.print()
        console.print(Text(f"and {counted(more, 'more fault')} (-v shows all)", "bold"))
    console.print()
    _write(console, _rows(console, report, shown, rows))
    _write(console, end)


def _rows(console: Console, report: Report, rows: Sequence[Row], every: Sequence[Row]) -> list[str]:
    """The lines of some rows of the table."""
    with _captured(console) as lines:
        _properties(console, report, rows, len(every))
    return lines


@contextmanager
def _captured(console: Console) -> Iterator[list[str]]:
    """Take the lines that are printed inside."""
    lines: list[str] = []
    with console.capture() as captured:
        yield lines
    lines += captured.get().splitlines()


def _write(console: Console, lines: Sequence[str]) -> None:
    """Print lines that were captured."""
    console.file.write("".join(f"{line}\n" for line in lines))


def _header(console: Console, report: Report) -> None:
    console.print(
        Text.assemble(("gradoracle ", "bold"), (printable(report.target), "bold cyan"), f"  family {report.family}")
    )
    for line in derivatives(report) if report.verdicts else ():
        console.print(Text(f"  {printable(line)}", "bold"))
    kernels = "kernel" if len(report.kernels) == 1 else "kernels"
    _line(console, kernels, ", ".join(report.kernels))
    for name, dims in report.narrowed.items():
        _line(
            console, "narrows", f"{f'{name}: ' if len(report.kernels) > 1 else ''}{dims}; other sizes are not checked"
        )
    _line(console, "device", f"{device(report)}, seed {report.seed}")
    _line(console, "contract", contracts(report))
    several = len(report.kernels) > 1
    for each in kept(report):
        _line(console, "inferred", f"{f'{each.kernel}, ' if several else ''}{each.dtype}: {each}")


def _properties(console: Console, report: Report, rows: Sequence[Row], of: int = 0, left: bool = False) -> None:
    """Some rows of the table, and how many of ``of`` violated ones are left out, or how many of all hold."""
    console.print(_table(report, rows))
    if of > len(rows):
        console.print(Text(f"and {counted(of - len(rows), 'more violated property')} (-v shows all)"))
    others = len({row.property_name for row in table(report).rows if row not in rows and row.is_decided}) if left else 0
    if others:
        hold = "hold (-v lists them)" if others > 1 else "holds (-v shows it)"
        console.print(Text(f"and {counted(others, 'more property')} {hold}"))
    console.print(Text("worst: largest error in sigma; b/t: median budget / |truth|, the sensitivity", "dim"))


def _table(report: Report, rows: Sequence[Row]) -> Grid:
    """A row for each property and kernel, a column for each dtype."""
    verdicts = table(report)
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    grid.add_column("property", overflow="fold", ratio=1)
    if verdicts.has_kernels:
        grid.add_column("kernel", overflow="fold")
    for dtype in verdicts.dtypes:
        grid.add_column(f"{dtype}\ncases  worst  b/t", no_wrap=True)
    for row in rows:
        cells = [Text(cell(each), _STYLES[each.status]) if each else Text("") for each in row.verdicts]
        grid.add_row(row.property_name, *([row.kernel] if verdicts.has_kernels else []), *cells)
    return grid


def _fault(console: Console, report: Report, fault: ShownFault, wrapped: int | None = None) -> None:
    """A fault; ``wrapped``: lines of one text at most, with ``_MOST_WRAPPED_IN_BRIEF`` all of it in brief."""
    lead, known = fault.lead, weight(report, fault)
    red, mark = known is Weight.RED, "!" if lead.status is Status.ERROR else WEIGHTS[known]
    title = f"{mark} {fault.state.upper()}  {lead.property_name}"
    console.print()
    console.print(
        Text.assemble((title, "bold red" if red else "bold"), f"  {lead.kernel}, {lead.dtype}, {extent(lead)}")
    )
    brief, named = wrapped == _MOST_WRAPPED_IN_BRIEF, None if wrapped is None else _MOST_NAMED
    for label, text in tell_all(fault, brief, named):
        whole = label in ("case", "replay", "shrunk")
        _line(console, label, text if wrapped is None or whole else _clipped(console, text, wrapped), whole)


def _clipped(console: Console, text: str, lines: int = 1) -> str:
    """The beginning of a text that takes more than so many lines beside a label."""
    most = lines * (console.width - _LABEL - 2)
    return text if len(text) <= most else f"{text[: most - 2].rstrip()} …"


def _not_checked(console: Console, report: Report, most: int) -> None:
    """Why cases were refused or not checked, each reason with its cases and properties."""
    reasons = unchecked(report)
    if not reasons:
        return
    console.print()
    console.print(Text("not checked (cases, reason)", "bold yellow"))
    for reason in reasons[:most]:
        _line(console, str(reason.count), str(reason))
    if len(reasons) > most:
        every = "-v lists more" if most < _MOST_REASONS else "--format json lists all"
        _line(console, "", f"and {counted(len(reasons) - most, 'more reason')} ({every})")


def _refusals(console: Console, report: Report) -> None:
    for message, where in refused(report):
        console.print()
        console.print(Text(f"refused: {printable(message)}", "yellow"))
        _line(console, "where", where)


def _missed(console: Console, report: Report) -> None:
    """The coverage goals that are missed, in a line."""
    if missed := [goal for goal in goals(report) if goal.is_missed]:
        few = "; ".join(f"{goal.name}: {goal.cases} of {goal.expected} expected" for goal in missed[:_MOST_FAULTS])
        more = f" and {len(missed) - _MOST_FAULTS} more" if len(missed) > _MOST_FAULTS else ""
        console.print(Text(f"coverage goals missed: {few}{more}", "bold red"))


def _undecided(console: Console, report: Report) -> None:
    """How many properties were decided nowhere, by the most frequent reasons."""
    rows = [row for row in table(report).rows if not row.is_decided]
    if not rows:
        return
    properties = {row.property_name for row in rows}
    reasons = [reason for reason in unchecked(report) if properties & set(reason.properties)]
    console.print()
    console.print(Text(f"undecided: {counted(len(properties), 'property')}", "bold yellow"))
    for reason in reasons[:_MOST_UNDECIDED]:
        own = [property_name for property_name in reason.properties if property_name in properties]
        who = own[0] if len(own) == 1 else f"{len(own)} properties, such as {own[0]}"
        _line(console, "", f"{_clipped(console, reason.brief)} ({who})")
    if len(reasons) > _MOST_UNDECIDED:
        _line(console, "", f"and {counted(len(reasons) - _MOST_UNDECIDED, 'more reason')} (-v shows all)")


def _goals(console: Console, report: Report, verbose: bool) -> None:
    """How many coverage goals are met; those that are missed in red, with their minimum, or all with their cases."""
    every = goals(report)
    if not every:
        return
    met, shown = sum(not goal.is_missed for goal in every), [each for each in every if verbose or each.is_missed]
    entries = [
        Text(f"{goal.name}: {goal.cases} of {goal.expected} expected", "bold red")
        if goal.is_missed
        else Text(f"{goal.name}: {goal.cases}")
        for goal in shown
    ]
    console.print()
    console.print(Text(f"coverage goals: {met} of {len(every)} met", "bold"))
    if entries:
        console.print(Text("  ").append_text(Text("; ").join(entries)))


def _notes(console: Console, report: Report) -> None:
    """The notes of a report and those of its verdicts, each once; a failing verdict's stand with the fault."""
    collected: dict[str, list[str]] = {}
    for verdict in report.verdicts:
        if verdict.status not in FAILING:
            for note in verdict.notes:
                collected.setdefault(note, []).append(f"{verdict.property_name} {verdict.dtype}")
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
