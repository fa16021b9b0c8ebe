"""Reports as strict JSON: everything that is known, under a schema with a version."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from enum import Enum
from typing import Any

from gradoracle.finding import Finding
from gradoracle.report import exit_code
from gradoracle.report.failure import Failure, failures
from gradoracle.verdict import Report, Verdict

SCHEMA = "gradoracle-report/1"  # raised when a field is renamed or removed, or changes its meaning


def render(reports: Sequence[Report]) -> str:
    """The reports of a run as one JSON document.

    Fields are those of Report, Verdict, Counterexample and Finding, by name; a finding's ``pool`` is left out.
    Numbers that JSON lacks are the strings "inf", "-inf" and "nan", which ``float`` reads.
    """
    document = {"schema": SCHEMA, "exit_code": exit_code(reports), "reports": [_report(report) for report in reports]}
    return json.dumps(_plain(document), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _report(report: Report) -> dict[str, Any]:
    fields = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    return {
        **fields,
        "exit_code": report.exit_code,
        "inconclusive": report.inconclusive(),
        "laws_checked": report.laws_checked,
        "verdicts": [_verdict(verdict) for verdict in report.verdicts],
        "faults": [_fault(failure) for failure in failures(report)],
    }


def _fault(failure: Failure) -> dict[str, Any]:
    """Which verdicts one fault has broken, the leading one first, and its likely cause."""
    broken = [{"law": v.law, "kernel": v.kernel, "dtype": v.dtype} for v in (failure.lead, *failure.others)]
    return {"verdicts": broken, "diagnosis": dataclasses.asdict(failure.diagnosis)}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    fields = {field.name: getattr(verdict, field.name) for field in dataclasses.fields(verdict)}
    counterexample = verdict.counterexample
    if counterexample is not None:
        fields["counterexample"] = {
            **{field.name: getattr(counterexample, field.name) for field in dataclasses.fields(counterexample)},
            "findings": [finding.to_dict() for finding in counterexample.findings],
            "first_findings": [finding.to_dict() for finding in counterexample.first_findings],
            "further": [finding.to_dict() for finding in counterexample.further],
        }
    return fields


def _plain(value: Any) -> Any:
    """Nothing but what JSON has."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")  # lone surrogates are no text
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, Finding):
        return _plain(value.to_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    return _plain(dict(value)) if hasattr(value, "keys") else _plain(str(value))
