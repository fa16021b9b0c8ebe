"""Reports as strict JSON: everything that is known, under a schema with a version."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from gradoracle.model.claims import standings
from gradoracle.model.serialize import to_plain
from gradoracle.model.verdict import Report, exit_code

SCHEMA = "gradoracle-report/5"  # raised when a field is renamed or removed, or changes its meaning


def render(reports: Sequence[Report]) -> str:
    """The reports of a run as one JSON document.

    Fields are those of Report, Verdict, Counterexample and Finding, by name; a finding's ``pool`` is left out.
    Numbers that JSON lacks are the strings "inf", "-inf" and "nan", which ``float`` reads.
    """
    document = {"schema": SCHEMA, "exit_code": exit_code(reports), "reports": [_report(report) for report in reports]}
    return json.dumps(to_plain(document), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _report(report: Report) -> dict[str, Any]:
    """The fields of a report, and what follows from them."""
    return {
        **{field.name: getattr(report, field.name) for field in dataclasses.fields(report)},
        "exit_code": report.exit_code,
        "inconclusive": report.inconclusive(),
        "properties_checked": report.properties_checked,
        "derivatives": {
            name: {each.value: str(known) for each, known in standings(report, name).items()} for name in report.kernels
        },
    }
