"""Reports as SARIF 2.1.0: a run for each target, a rule for each property, a result for each fault.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from gradoracle.model.comparison import Kind, Line, Weight
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Report
from gradoracle.report.shown_fault import ShownFault, as_text, headline, printable, shown_faults, tell_all
from gradoracle.report.summary import compared, weight

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FINGERPRINT = "gradoracle/v1"  # raised when what a fingerprint is made of changes
_ROOT = "%SRCROOT%"
_GATE_RULES = {
    Kind.UNCHECKED: "Everything that was checked in the base is checked.",
    Kind.ACCURACY: "Errors in sigma are no larger than in the base.",
    Kind.JUDGE: "A change of the definition, contract, domain or properties is acknowledged.",
    Kind.KNOWN: "Every known failure still fails and has not expired.",
    Kind.BASE: "There is a base to compare with.",
}


def render(reports: Sequence[Report]) -> str:
    """The reports of a run as one SARIF log. The id of a rule is the name of its property."""
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(report) for report in reports]}
    return json.dumps(log, indent=1, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8") + "\n"


def _run(report: Report) -> dict[str, Any]:
    from gradoracle import __version__

    properties = {verdict.property_name: verdict.statement for verdict in report.verdicts}
    lines = [line for line in compared(report) if line.kind is not Kind.VIOLATED]
    properties |= {_gate_rule(line): _GATE_RULES[line.kind] for line in lines}
    seen: dict[str, int] = {}
    return {
        "tool": {
            "driver": {
                "name": "gradoracle",
                "version": __version__,
                "rules": [_rule(property_name, statement) for property_name, statement in properties.items()],
            }
        },
        "automationDetails": {"id": f"gradoracle/{report.target}/"},
        "invocations": [_invocation(report)],
        "columnKind": "utf16CodeUnits",
        "results": [
            *(_result(report, fault, list(properties), seen) for fault in shown_faults(report)),
            *(_line(report, line, list(properties), seen) for line in lines),
        ],
    }


def _rule(property_name: str, statement: str) -> dict[str, Any]:
    return {
        "id": property_name,
        "shortDescription": {"text": printable(statement or property_name)},
        "help": {"text": f"gradoracle explain {property_name}"},
        "defaultConfiguration": {"level": "error"},
    }


def _invocation(report: Report) -> dict[str, Any]:
    """How the run ended; a notification for each thing that should have been checked and was not."""
    reasons = report.inconclusive()
    return {
        "executionSuccessful": not reasons,
        "exitCode": report.exit_code,
        "toolExecutionNotifications": [
            {"level": "error", "message": {"text": printable(reason)}, "descriptor": {"id": "inconclusive"}}
            for reason in reasons
        ],
    }


def _gate_rule(line: Line) -> str:
    return f"gate/{line.kind.value.replace(' ', '_')}"


def _line(report: Report, line: Line, properties: list[str], seen: dict[str, int]) -> dict[str, Any]:
    """A line of a gate as a result."""
    rule = _gate_rule(line)
    return {
        "ruleId": rule,
        "ruleIndex": properties.index(rule),
        "kind": "fail" if line.weight is not Weight.NOTE else "informational",
        "level": {Weight.RED: "error", Weight.OPEN: "warning"}.get(line.weight, "none"),
        "message": {"text": printable(line.text)},
        "locations": [_location(report, line.kernel or next(iter(report.kernels), report.target))],
        "partialFingerprints": {
            FINGERPRINT: _fingerprint(report, line.kernel, f"{rule} {line.property_name} {line.dtype}", seen)
        },
        "properties": {"weight": line.weight.value, "dtype": line.dtype, "case": printable(line.case)},
    }


def _result(report: Report, fault: ShownFault, properties: list[str], seen: dict[str, int]) -> dict[str, Any]:
    lead = fault.lead
    text = as_text([("", headline(lead)), *tell_all(fault)])
    case = lead.counterexample.case if lead.counterexample is not None else ""
    return {
        "ruleId": lead.property_name,
        "ruleIndex": properties.index(lead.property_name),
        "kind": "fail",
        "level": _level(report, fault),
        "message": {"text": printable(text)},
        "locations": [_location(report, lead.kernel)],
        "partialFingerprints": {FINGERPRINT: _fingerprint(report, lead.kernel, lead.property_name, seen)},
        "properties": {
            "status": lead.status.value,
            "severity": None if fault.severity is None else fault.severity.value,
            "dtype": lead.dtype,
            "case": printable(case),
            "cause": fault.diagnosis.cause,
            "properties": list(dict.fromkeys(verdict.property_name for verdict in (lead, *fault.others))),
        },
    }


def _level(report: Report, fault: ShownFault) -> str:
    """Error, warning or note: the severity of a fault; in a gate its weight too. What may be wrong is a warning."""
    known = weight(report, fault)
    if known is Weight.OPEN:
        return "warning"
    if report.comparison is not None and known is not Weight.RED:
        return "note"
    levels = {Severity.PRECISION: "warning", Severity.ROBUSTNESS: "note"}
    return "error" if fault.severity is None else levels.get(fault.severity, "error")


def _location(report: Report, kernel: str) -> dict[str, Any]:
    """The kernel's name, and its file and line in the working tree where they are known."""
    found: dict[str, Any] = {
        "logicalLocations": [{"name": kernel, "fullyQualifiedName": f"{report.family}/{kernel}", "kind": "function"}]
    }
    place = report.locations.get(kernel)
    if place is not None:
        found["physicalLocation"] = {
            "artifactLocation": {"uri": quote(place.file), "uriBaseId": _ROOT},
            "region": {"startLine": place.line},
        }
    return found


def _fingerprint(report: Report, kernel: str, rule: str, seen: dict[str, int]) -> str:
    """A digest that a kernel and leading property determine, whatever case, line, dtype and machine show the fault."""
    place = report.locations.get(kernel)
    key = "\n".join([place.file if place else report.family, kernel, rule])
    seen[key] = seen.get(key, 0) + 1
    digest = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:32]
    return f"{digest}:{seen[key]}"
