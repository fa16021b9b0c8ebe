"""A fault as it is shown: with its verdicts, as (label, text) lines that every view prints."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradoracle.model.explanation import PrecisionLoss, WrongConstant
from gradoracle.model.fault import UNKNOWN, Diagnosis
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.property import PropertyKind
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Counterexample, Report, Status, Verdict
from gradoracle.model.wording import got_and_true

CODE = ("case", "first", "replay")  # labels whose text is to be copied
_MOST_TENSORS = 4  # of one counterexample that are described in full
_RAISED = {Status.CRASHED: "crash", Status.ERROR: "error"}  # whose message says what happened


@dataclass(frozen=True)
class ShownFault:
    """The verdicts of one fault.

    Attributes:
        lead: the verdict of the property that compares the first wrong tensor with the truth; it is reported in full.
        others: the rest; only their properties are named.
        specific: one that says more than that numbers are wrong, where ``lead`` compares numbers.
        diagnosis: the likely cause; empty where none stands out.
        severity: the gravest of the verdicts'.
    """

    lead: Verdict
    others: tuple[Verdict, ...]
    specific: Verdict | None = None
    diagnosis: Diagnosis = UNKNOWN
    severity: Severity | None = None

    @property
    def state(self) -> str:
        """What the fault is, in a word: its severity where that is decided, else the status of its leading verdict."""
        decided = self.lead.status is Status.VIOLATED and self.severity not in (None, Severity.UNDECIDED)
        return self.severity.value if decided and self.severity is not None else self.lead.status.value


def shown_faults(report: Report) -> list[ShownFault]:
    """The faults of a report, with their verdicts."""
    known = {verdict.key: verdict for verdict in report.verdicts}
    found = []
    for fault in report.faults:
        lead, *others = (known[key] for key in fault.verdicts)
        specific = None if fault.specific is None else known[fault.specific]
        found.append(ShownFault(lead, tuple(others), specific, fault.diagnosis, fault.severity))
    return found


Lines = list[tuple[str, str]]


def tell(verdict: Verdict) -> Lines:
    """A failing verdict as (label, text) lines: what is wrong, how bad, smallest case, where, why, how to see it."""
    return [*_what(verdict), *_case(verdict), *_where(verdict), *_why(verdict), *_again(verdict)]


def tell_all(fault: ShownFault, brief: bool = False, named: int | None = None) -> Lines:
    """A fault as (label, text) lines, in the order of ``tell``: its leading verdict, and what the others add.

    Args:
        fault: the fault.
        brief: whether to use few lines: one tensor, and not the property's statement.
        named: the number of other properties that are named; None: all of them.
    """
    lead, most = fault.lead, 1 if brief else _MOST_TENSORS
    lines = [*_what(lead, most, stated=not brief), *_case(lead), *_where(lead, most), *_why(lead)]
    lines += _tell_specific(fault.specific)
    if fault.diagnosis.cause:
        lines.append(("likely", str(fault.diagnosis)))
    if more := also(fault, named):
        lines.append(("also", more))
    return [*lines, *_again(lead)]


def _what(verdict: Verdict, most: int = _MOST_TENSORS, stated: bool = True) -> Lines:
    """The property, its wrong tensors with their worst elements, and the severity; how it crashed."""
    lines = [("property", verdict.statement)] if verdict.statement and stated else []
    counterexample = verdict.counterexample
    if counterexample is None:
        return lines
    wrong = _wrong(counterexample)
    lines += [line for finding in wrong[:most] for line in _tell_finding(finding)]
    if more := wrong[most:]:
        names = ", ".join(finding.tensor for finding in more)
        lines.append(("", f"and {len(more)} more {'tensor' if len(more) == 1 else 'tensors'}: {names}"))
    if said := _tell_severity(verdict):
        lines.append(("severity", said))
    if counterexample.message and verdict.status in _RAISED:
        lines.append((_RAISED[verdict.status], counterexample.message))
    return lines


def _case(verdict: Verdict) -> Lines:
    """The smallest case."""
    counterexample = verdict.counterexample
    if counterexample is None:
        return [("case", "not kept")]
    shrunk = [counterexample.shrink_note] if counterexample.shrink_note else []
    shrunk += [f"first seen on: {counterexample.shrunk_from}"] if counterexample.shrunk_from else []
    lines = [("first" if counterexample.pooled else "case", counterexample.case)]
    return [*lines, ("shrunk", "; ".join(shrunk))] if shrunk else lines


def _where(verdict: Verdict, most: int = _MOST_TENSORS) -> Lines:
    """Where wrong elements lie, and the statement that loses precision."""
    counterexample = verdict.counterexample
    if counterexample is None:
        return []
    wrong = _wrong(counterexample)[:most]
    lines: Lines = []
    for finding in wrong:
        named = f"{finding.tensor}: " if len(wrong) > 1 else ""
        patterns = [finding.pattern] if finding.pattern else []
        for other in counterexample.first_findings:
            if _alike(other, finding) and other.pattern and _shown(other) != _shown(finding):
                patterns.append(f"on the first case: {other.pattern}")
        lines += [("pattern", named + pattern) for pattern in patterns]
    if counterexample.loss is not None:
        lines.append(("lost at", _tell_loss(counterexample.loss)))
    return lines


def _why(verdict: Verdict) -> Lines:
    """What would explain it: a constant, another preset, notes."""
    counterexample = verdict.counterexample
    lines: Lines = []
    if counterexample is not None and counterexample.constant is not None:
        lines.append(("constant", _tell_constant(counterexample.constant)))
    if counterexample is not None and counterexample.message and verdict.status not in _RAISED:
        lines.append(("note", counterexample.message))
    return lines + [("note", note) for note in verdict.notes]


def _tell_specific(specific: Verdict | None) -> Lines:
    """What a more specific property says: its first finding, and the case where it is another one."""
    if specific is None or specific.counterexample is None:
        return []
    found = _wrong(specific.counterexample)[0]
    lines = [("shown by", f"{specific.property_name}, {specific.dtype}"), *list(_tell_finding(found))[:1]]
    return [*lines, ("pattern", found.pattern)] if found.pattern else lines


def _again(verdict: Verdict) -> Lines:
    """How to see it again."""
    shown = verdict.counterexample
    return [] if shown is None else [("replay", shown.command or f"gradoracle replay {shlex.quote(shown.case)}")]


def _wrong(counterexample: Counterexample) -> list[Finding]:
    return [finding for finding in counterexample.findings if finding.outcome is Outcome.VIOLATED]


def as_text(lines: Iterable[tuple[str, str]]) -> str:
    """(label, text) lines as plain text."""
    return "\n".join(f"{label}: {text}" if label else text for label, text in lines)


def headline(verdict: Verdict) -> str:
    """One line: status, property, kernel, dtype, and on how many cases."""
    return f"{verdict.status.value} {verdict.property_name} of {verdict.kernel} in {verdict.dtype} on {extent(verdict)}"


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


def also(fault: ShownFault, most: int | None = None) -> str:
    """The other properties that a fault violates, each with its dtypes; "" where there are none.

    Args:
        fault: the fault.
        most: the number of properties that are named; None: all of them.
    """
    dtypes: dict[str, list[str]] = {}
    for verdict in fault.others:
        dtypes.setdefault(verdict.property_name, []).append(verdict.dtype)
    named = {property_name: ", ".join(dict.fromkeys(names)) for property_name, names in dtypes.items()}
    more = len(named.keys() - {fault.lead.property_name})
    if not more:
        return f"the same in {', '.join(named.values())}" if named else ""
    shown = [f"{property_name} ({names})" for property_name, names in named.items()]
    said = f"{more} more {'property shows' if more == 1 else 'properties show'} the same fault"
    if most is None or len(shown) <= most:
        return f"{said}: {', '.join(shown)}"
    return f"{said}, such as {', '.join(shown[:most])}"


def printable(text: str) -> str:
    """Text without control characters and lone surrogates, which what a kernel raised may hold."""
    return re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)


def _tell_severity(verdict: Verdict) -> str:
    """What the severity of a violation is known from; "" where its findings say so themselves."""
    if not (verdict.is_open or verdict.status is Status.VIOLATED) or verdict.kind is PropertyKind.DEFINITION:
        return ""
    note = f": {verdict.severity_note}" if verdict.severity_note else ""  # a base of a gate may be older than notes
    findings = () if verdict.counterexample is None else verdict.counterexample.findings
    if verdict.severity is Severity.UNDECIDED:
        known = ""
        if verdict.is_open:
            known = ", so it is not checked"
        elif verdict.declared:
            known = f", and either breaks {verdict.contract}, which the kernel declares"
        return f"undecided, wrong or lost precision{known}{note}"
    if verdict.severity is Severity.WRONG and note:
        return f"wrong{note}"
    if verdict.severity is Severity.PRECISION:
        lost = bits_lost([verdict])
        return f"precision: {_tell_left(findings)}{f'; {lost}' if lost else ''}"
    measured = [f for f in findings if f.outcome is Outcome.VIOLATED and f.rule != "exact" and not f.lost]
    if verdict.severity is Severity.WRONG and measured:
        return "wrong: the error stays with every float in float64"
    return ""


def _tell_left(findings: Sequence[Finding]) -> str:
    """What becomes of an error when it is widened."""
    most = max(findings, key=lambda each: each.left, default=None)
    if most is None or not most.left or most.worst is None:
        return "the error goes away with every float in float64"
    size = abs(most.worst.got - most.worst.true) / (abs(most.worst.true) or 1.0)
    return (
        f"the error falls from {size:.2g} to {most.left:.2g} of {most.tensor} with every float in float64, "
        "as rounding there explains"
    )


def bits_lost(verdicts: Iterable[Verdict]) -> str:
    """By how many bits errors exceed what the contract allows, tensor by tensor: ``3.1 bits of dq below bf16``."""
    errors: dict[str, float] = {}
    contract = ""
    for verdict in verdicts:
        contract = verdict.contract
        shown = verdict.counterexample
        every = () if shown is None else (*shown.findings, *shown.first_findings, *shown.further)
        plain = [finding for finding in every if finding.outcome is Outcome.VIOLATED and finding.is_plain]
        for finding in plain:
            if math.isfinite(finding.error) and finding.error > 1:
                errors[finding.tensor] = max(errors.get(finding.tensor, 0.0), finding.error)
    if not errors:
        return ""
    worst = sorted(errors, key=lambda tensor: -errors[tensor])
    parts = [f"{math.log2(errors[tensor]):.1f} bits of {tensor}" for tensor in worst[:_MOST_TENSORS]]
    more = f" and less of {len(worst) - _MOST_TENSORS} more" if len(worst) > _MOST_TENSORS else ""
    return f"{', '.join(parts)}{more} below {contract}"


def _tell_loss(loss: PrecisionLoss) -> str:
    """Where precision is lost: file, line and text of the statement, and how many others there are."""
    lead = loss.statement
    text = f"{lead.file}:{lead.line}  {loss.source}"
    if not loss.others:
        return text
    lines = ", ".join(str(each.line) for each in loss.others[:_MOST_TENSORS])
    how = "together with" if loss.together else "and, each alone, at"
    return f"{text}  ({how} line{'s' if len(loss.others) > 1 else ''} {lines})"


def _tell_constant(constant: WrongConstant) -> str:
    """A wrong constant: its place, what it is, and with which value nothing is wrong."""
    name = f" ({constant.name})" if constant.name else ""
    what = f"{constant.argument} = " if constant.argument else ""
    return f"{constant.file}:{constant.line}  {what}{constant.value:.9g} should be {constant.fitted:.9g}{name}"


def _tell_finding(finding: Finding) -> Iterable[tuple[str, str]]:
    rule = f"[{finding.rule}] " if finding.rule else ""
    yield finding.tensor, f"{rule}{finding.message or 'is wrong'}{_ratio(finding)}"
    worst = finding.worst
    if worst is not None:
        place = f"at [{', '.join(map(str, worst.index))}]" if worst.index else ""
        values = "" if math.isnan(worst.got) and math.isnan(worst.true) else got_and_true(worst.got, worst.true)
        sigma = f"error {worst.error_in_sigma:.3g} sigma" if math.isfinite(worst.error_in_sigma) else ""
        if shown := ", ".join(part for part in (place, values, sigma) if part):
            yield "worst", shown


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
