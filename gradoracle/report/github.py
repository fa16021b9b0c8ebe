"""Reports as workflow commands of GitHub Actions: one annotation a fault, on the kernel's own line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradoracle.model.comparison import Kind, Weight
from gradoracle.model.verdict import Report
from gradoracle.report.failure import as_text, extent, failures, printable, tell_all
from gradoracle.report.summary import compared, extent_of, outcome, title, weight

_LEVELS = {Weight.RED: "error", Weight.OPEN: "error", Weight.NOTE: "notice"}


def render(reports: Sequence[Report]) -> str:
    """The reports of a run: an error for each fault, and for a target that was not checked as it should be."""
    return "".join(f"{line}\n" for report in reports for line in _report(report))


def _report(report: Report) -> Iterable[str]:
    for line in compared(report):
        if line.kind is not Kind.VIOLATED:
            title_ = f"{report.target}: {line.kind.value}"
            yield _command(_LEVELS[line.weight], line.text, title=title_, **_place(report, line.kernel))
    for failure in failures(report):
        level = _LEVELS[weight(report, failure)]
        told = as_text([("", extent(failure.lead)), *tell_all(failure)])
        yield _command(level, told, title=title(failure), **_place(report, failure.lead.kernel))
    reasons = report.inconclusive(lines=False)
    if reasons:
        said = "inconclusive" if report.exit_code == 4 else "not all was checked"
        yield _command("error", "\n".join(reasons), title=f"{report.target}: {said}", **_place(report))
    elif report.exit_code == 0:
        told = extent_of(report) if report.verdicts else outcome(report)
        yield _command("notice", told, title=outcome(report))


def _place(report: Report, kernel: str = "") -> dict[str, str]:
    """Where a kernel is written; the report's first where none is named."""
    place = report.locations.get(kernel or next(iter(report.kernels), ""))
    return {"file": place.file, "line": str(place.line)} if place is not None else {}


def _command(name: str, message: str, **properties: str) -> str:
    told = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {told}::{_data(message)}"


def _data(text: str) -> str:
    """Text of a command: a line break would end it."""
    lines = "\n".join(printable(line) for line in text.splitlines())
    return lines.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
