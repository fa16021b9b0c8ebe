"""Failure: one fault with its verdicts, as (label, text) lines that every view prints."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradoracle.model.fault import UNKNOWN, Diagnosis, VerdictKey
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.property import PropertyKind
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Counterexample, Report, Status, Verdict
from gradoracle.report.precision import bits_lost, told_constant, told_loss

_MOST_TENSORS = 4  # of one counterexample that are described in full


@dataclass(frozen=True)
class Failure:
    """The verdicts of one fault.

    Attributes:
        lead: of the most specific property; it is reported in full.
        others: the rest, of which only the properties are named.
        direct: one that shows a wrong tensor itself, where ``lead`` compares something else.
        diagnosis: the likely cause; empty where none stands out.
        severity: the gravest of the verdicts'.
    """

    lead: Verdict
    others: tuple[Verdict, ...]
    direct: Verdict | None = None
    diagnosis: Diagnosis = UNKNOWN
    severity: Severity | None = None

    @property
    def state(self) -> str:
        """What the fault is, in a word: its severity where that is decided, else the status of its leading verdict."""
        decided = self.lead.status is Status.VIOLATED and self.severity not in (None, Severity.UNDECIDED)
        return self.severity.value if decided and self.severity is not None else self.lead.status.value


def failures(report: Report) -> list[Failure]:
    """The faults of a report, with their verdicts."""
    known = {VerdictKey(verdict.law, verdict.kernel, verdict.dtype): verdict for verdict in report.verdicts}
    found = []
    for fault in report.faults:
        lead, *others = (known[key] for key in fault.verdicts)
        direct = None if fault.direct is None else known[fault.direct]
        found.append(Failure(lead, tuple(others), direct, fault.diagnosis, fault.severity))
    return found


def tell(verdict: Verdict) -> list[tuple[str, str]]:
    """A failing verdict as (label, text) lines: property, tensors, worst elements, patterns, case, replay."""
    lines = [("property", verdict.statement)] if verdict.statement else []
    counterexample = verdict.counterexample
    if counterexample is None:
        return [*lines, ("case", "not kept")]
    lines += _tell_findings(counterexample, _MOST_TENSORS)
    if said := _tell_severity(verdict):
        lines.append(("severity", said))
    if counterexample.loss is not None:
        lines.append(("lost at", told_loss(counterexample.loss)))
    if counterexample.constant is not None:
        lines.append(("constant", told_constant(counterexample.constant)))
    if counterexample.message:
        label = {Status.CRASHED: "crash", Status.ERROR: "error"}.get(verdict.status, "note")
        lines.append((label, counterexample.message))
    lines += [("note", note) for note in verdict.notes]
    lines.append(("first" if counterexample.pooled else "case", counterexample.case))
    shrunk = [part for part in (counterexample.shrink_note, _shrunk_from(counterexample.shrunk_from)) if part]
    if shrunk:
        lines.append(("shrunk", "; ".join(shrunk)))
    lines.append(("replay", _replay(counterexample)))
    return lines


def tell_directly(failure: Failure) -> list[tuple[str, str]]:
    """The verdict ``direct`` of a fault as (label, text) lines; none where there is no such verdict."""
    direct = failure.direct
    if direct is None or direct.counterexample is None:
        return []
    lines = [("shown by", f"{direct.law}, {direct.dtype}"), *_tell_findings(direct.counterexample, 1)]
    replay = _replay(direct.counterexample)
    known = failure.lead.counterexample
    return lines if known is not None and _replay(known) == replay else [*lines, ("replay", replay)]


def tell_all(failure: Failure) -> list[tuple[str, str]]:
    """A fault as (label, text) lines: its leading verdict, ``direct``, the likely cause, the other properties."""
    lines = [*tell(failure.lead), *tell_directly(failure)]
    if failure.diagnosis.cause:
        lines.append(("likely", str(failure.diagnosis)))
    if more := also(failure):
        lines.append(("also", more))
    return lines


def as_text(lines: Iterable[tuple[str, str]]) -> str:
    """(label, text) lines as plain text."""
    return "\n".join(f"{label}: {text}" if label else text for label, text in lines)


def headline(verdict: Verdict) -> str:
    """One line: status, property, kernel, dtype, and on how many cases."""
    return f"{verdict.status.value} {verdict.law} of {verdict.kernel} in {verdict.dtype} on {extent(verdict)}"


def extent(verdict: Verdict) -> str:
    """On how many of its cases a verdict fails."""
    failing = failing_cases(verdict)
    if failing == 0:
        return f"all {cases(verdict)} cases together"
    return f"{failing} of {cases(verdict)} cases"


def failing_cases(verdict: Verdict) -> int:
    """On how many cases a verdict fails; 0 where it fails on all of them pooled, and on none alone."""
    counts = {Status.CRASHED: verdict.cases_crashed, Status.ERROR: verdict.cases_error}
    return counts.get(verdict.status, verdict.cases_violated)


def cases(verdict: Verdict) -> int:
    """How many cases a property applied to."""
    return (
        verdict.cases_held
        + verdict.cases_violated
        + verdict.cases_crashed
        + verdict.cases_error
        + verdict.cases_refused
        + verdict.cases_not_checked
    )


def also(failure: Failure) -> str:
    """The other properties that a fault violates, each with its dtypes; "" where there are none."""
    dtypes: dict[str, list[str]] = {}
    for verdict in failure.others:
        dtypes.setdefault(verdict.law, []).append(verdict.dtype)
    named = {law: ", ".join(dict.fromkeys(names)) for law, names in dtypes.items()}
    more = len(named.keys() - {failure.lead.law})
    if not more:
        return f"the same in {', '.join(named.values())}" if named else ""
    properties = ", ".join(f"{law} ({names})" for law, names in named.items())
    return f"{more} more {'property shows' if more == 1 else 'properties show'} the same fault: {properties}"


def number(value: float) -> str:
    """A float with all the digits of a float32."""
    return f"{value:.9g}"


def printable(text: str) -> str:
    """Text without control characters and lone surrogates, which what a kernel raised may hold."""
    return re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)


def _tell_findings(counterexample: Counterexample, most: int) -> list[tuple[str, str]]:
    """The wrong tensors of a case, the first ``most`` of them in full."""
    wrong = [finding for finding in counterexample.findings if finding.outcome is Outcome.VIOLATED]
    lines = [line for finding in wrong[:most] for line in _tell_finding(finding, counterexample.first_findings)]
    if more := wrong[most:]:
        lines.append(("", f"and {len(more)} more {'tensor' if len(more) == 1 else 'tensors'}: {_names(more)}"))
    return lines


def _tell_severity(verdict: Verdict) -> str:
    """What the severity of a violation is known from; "" where its findings say so themselves."""
    if verdict.status is not Status.VIOLATED or verdict.kind is PropertyKind.FORMULA:
        return ""
    if verdict.severity is Severity.UNDECIDED:
        return f"undecided, so it counts as wrong: {verdict.severity_note}"
    if verdict.severity is Severity.PRECISION:
        lost = bits_lost([verdict])
        return f"precision: the error goes away with every float in float64{f'; {lost}' if lost else ''}"
    findings = () if verdict.counterexample is None else verdict.counterexample.findings
    measured = [f for f in findings if f.outcome is Outcome.VIOLATED and f.rule != "exact" and not f.lost]
    if verdict.severity is Severity.WRONG and measured:
        return "wrong: the error stays with every float in float64"
    return ""


def _replay(counterexample: Counterexample) -> str:
    return counterexample.command or f"gradoracle replay {shlex.quote(counterexample.case)}"


def _tell_finding(finding: Finding, first: Sequence[Finding]) -> Iterable[tuple[str, str]]:
    rule = f"[{finding.rule}] " if finding.rule else ""
    yield finding.tensor, f"{rule}{finding.message or 'is wrong'}{_ratio(finding)}"
    worst = finding.worst
    if worst is not None:
        place = f"at [{', '.join(map(str, worst.index))}]" if worst.index else ""
        values = "" if math.isnan(worst.got) and math.isnan(worst.true) else _values(worst.got, worst.true)
        sigma = f"error {worst.error_in_sigma:.3g} sigma" if math.isfinite(worst.error_in_sigma) else ""
        if shown := ", ".join(part for part in (place, values, sigma) if part):
            yield "worst", shown
    if finding.pattern:
        yield "pattern", finding.pattern
    for other in first:
        if _alike(other, finding) and other.pattern and _shown(other) != _shown(finding):
            yield "pattern", f"on the first case: {other.pattern}"


def _ratio(finding: Finding) -> str:
    """The error as a multiple of what its rule allows; "" for a broken fact."""
    if not math.isfinite(finding.error):
        return ""
    if finding.rule in ("local", "worst case"):
        return f"; the worst by a factor of {finding.error:.3g}"
    return f"; {finding.error:.3g} times the limit"


def _alike(one: Finding, other: Finding) -> bool:
    """Whether two findings are of one tensor and rule; which of the two local rules decides depends on the recipes."""
    rules = {finding.rule.replace("worst case", "local") for finding in (one, other)}
    return one.tensor == other.tensor and one.lost == other.lost and len(rules) == 1


def _shown(finding: Finding) -> tuple[object, ...]:
    """What the pattern of a finding says, whatever its case's sizes are."""
    single = [span.first == span.last for span in finding.region.spans]
    return finding.region.shape, *single, finding.cause


def _values(got: float, true: float) -> str:
    return f"got {number(got)}, true {number(true)}"


def _shrunk_from(case: str) -> str:
    return f"first seen on: {case}" if case else ""


def _names(findings: Iterable[Finding]) -> str:
    return ", ".join(finding.tensor for finding in findings)
