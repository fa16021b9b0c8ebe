"""Reports as Markdown, for a comment on a pull request or the summary of a CI step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gradoracle.model.verdict import Report, exit_code
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
    kept,
    outcome,
    table,
    unchecked,
    weight,
)

_MOST_REASONS = 12


def render(reports: Sequence[Report]) -> str:
    """The reports of a run: the outcome of each, its faults in full, and folded its table and what was not checked."""
    lines = [line for report in reports for line in _report(report)]
    if reports and reports[0].comparison is not None:
        lines = [f"**{MARKS[exit_code(reports)]} {_text(all_compared(reports))}**", "", *lines]
    return "\n".join(lines) + "\n"


def _report(report: Report) -> Iterable[str]:
    yield f"## {MARKS[report.exit_code]} gradoracle {_text(outcome(report))}"
    yield ""
    for line in compared(report):
        yield f"- {WEIGHTS[line.weight]} {line.kind.value}: {_text(line.text)}"
    if report.comparison is not None and not report.verdicts:
        return
    yield ""
    for known in derivatives(report):
        yield f"- {_text(known)}"
    yield ""
    yield _text(f"{extent_of(report)}. {device(report)}, seed {report.seed}; {contracts(report)}.")
    yield ""
    for each in kept(report):
        yield f"- {_text(each.kernel)} in {each.dtype} {_text(str(each))}"
    for reason in report.inconclusive(lines=False):
        yield f"- {'because' if report.exit_code == 4 else 'also'}: {_text(reason)}"
    for fault in shown_faults(report):
        yield from _fault(fault, WEIGHTS[weight(report, fault)])
    yield from _folded("properties", _table(report))
    reasons = [f"- {each.count}: {_text(str(each))}" for each in unchecked(report)[:_MOST_REASONS]]
    yield from _folded("not checked", reasons)
    met = [f"{_text(goal.name)}: {goal.cases}{' **too few**' if goal.is_missed else ''}" for goal in goals(report)]
    yield from _folded("coverage goals", ["; ".join(met)] if met else [])


def _fault(fault: ShownFault, mark: str) -> Iterable[str]:
    lead = fault.lead
    yield ""
    yield f"### {mark} {fault.state.upper()} {_code(lead.property_name)}"
    yield ""
    yield f"{_text(lead.kernel)}, {lead.dtype}, {extent(lead)}"
    yield ""
    for label, text in tell_all(fault):
        yield f"- {f'**{_text(label)}** ' if label else ''}{_code(text) if label in CODE else _text(text)}"


def _table(report: Report) -> list[str]:
    """A row for each property and kernel, a column for each dtype."""
    verdicts = table(report)
    head = ["property", *(["kernel"] if verdicts.has_kernels else []), *verdicts.dtypes]
    lines = [_row(head), _row(["---"] * len(head))]
    for row in verdicts.rows:
        name = f"**{_text(row.property_name)}**" if row.is_failing else _text(row.property_name)
        cells = [_text(cell(each)) if each else "" for each in row.verdicts]
        lines.append(_row([name, *([_text(row.kernel)] if verdicts.has_kernels else []), *cells]))
    return lines if report.verdicts else []


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _folded(summary: str, lines: Sequence[str]) -> Iterable[str]:
    """Lines in a fold; nothing where there are none."""
    if lines:
        yield from ("", f"<details><summary>{summary}</summary>", "", *lines, "", "</details>")


def _text(text: str) -> str:
    """Text with all markup escaped: what a kernel raised may hold any."""
    text = " ".join(printable(text).split())
    return _MARKUP.sub(lambda mark: _ESCAPED.get(mark[0], "\\" + mark[0]), text)


_MARKUP = re.compile(r"[\\`*{}\[\]<>#|~&@]|(?<!\w)_|_(?!\w)")  # an underscore inside a word marks nothing up
_ESCAPED = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;"}


def _code(text: str) -> str:
    """Text as code, in as many backticks as it needs."""
    text = " ".join(printable(text).split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"
