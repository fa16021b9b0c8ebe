"""Reports as workflow commands of GitHub Actions: one annotation for each fault, on the line of the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradoracle.model.comparison import Kind, Weight
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Report
from gradoracle.report.shown_fault import ShownFault, as_text, extent, printable, shown_faults, tell_all
from gradoracle.report.summary import compared, derivatives, extent_of, outcome, title, weight

_LEVELS = {Weight.RED: "error", Weight.OPEN: "error", Weight.NOTE: "notice"}


def render(reports: Sequence[Report]) -> str:
    """The reports of a run: an error for each fault, and for each target that was not checked as it should be."""
    return "".join(f"{line}\n" for report in reports for line in _report(report))


def _report(report: Report) -> Iterable[str]:
    for line in compared(report):
        if line.kind is not Kind.VIOLATED:
            about = f"{report.target}: {line.kind.value}"
            yield _command(_LEVELS[line.weight], line.text, title=about, **_place(report, line.kernel))
    for fault in shown_faults(report):
        level = _level(report, fault)
        text = as_text([("", extent(fault.lead)), *tell_all(fault)])
        yield _command(level, text, title=title(fault), **_place(report, fault.lead.kernel))
    reasons = report.inconclusive(lines=False)
    if reasons:
        state = "inconclusive" if report.exit_code == 4 else "incomplete"
        yield _command("error", "\n".join(reasons), title=f"{report.target}: {state}", **_place(report))
    elif report.exit_code == 0:
        text = "\n".join([extent_of(report), *derivatives(report)]) if report.verdicts else outcome(report)
        yield _command("notice", text, title=outcome(report))


def _level(report: Report, fault: ShownFault) -> str:
    """Error, warning or notice: the severity of a fault, but an error if it counts; in a gate its weight.

    What may be wrong is a warning; if nothing else decided it, the report says so in an error of its own.
    """
    known = weight(report, fault)
    if known is Weight.RED:
        return "error"
    warns = known is Weight.OPEN or (report.comparison is None and fault.severity is Severity.PRECISION)
    return "warning" if warns else "notice"


def _place(report: Report, kernel: str = "") -> dict[str, str]:
    """File and line of a kernel, by default the report's first."""
    place = report.locations.get(kernel or next(iter(report.kernels), ""))
    return {"file": place.file, "line": str(place.line)} if place is not None else {}


def _command(name: str, message: str, **properties: str) -> str:
    given = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {given}::{_data(message)}"


def _data(text: str) -> str:
    """Text of a command, with its line breaks escaped: one would end the command."""
    lines = "\n".join(printable(line) for line in text.splitlines())
    return lines.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
