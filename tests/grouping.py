"""The faults of a report that a test has made by hand, as a check groups them."""

from __future__ import annotations

from gradoracle.check.faults import diagnosed, grouped
from gradoracle.model.verdict import Report


def with_faults(report: Report) -> Report:
    """The same report, its failing verdicts grouped."""
    report.faults = diagnosed(grouped(report.verdicts), report.verdicts)
    return report
