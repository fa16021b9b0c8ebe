"""Failure: the verdicts that one fault has broken, told by the most specific of its laws."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradoracle.finding import Finding, Outcome
from gradoracle.verdict import Report, Status, Verdict, without_numbers

_MOST_TENSORS = 4  # of one counterexample that are told in full


@dataclass(frozen=True)
class Failure:
    """Verdicts that share a wrong tensor with the same pattern (or a crash of the same kind); ``lead`` tells it."""

    lead: Verdict
    others: tuple[Verdict, ...]


def failures(report: Report) -> list[Failure]:
    """The violated and crashed verdicts of a report, one Failure a fault; most specific laws first."""
    groups: list[tuple[set[tuple[str, ...]], list[Verdict]]] = []
    for verdict in report.verdicts:
        if verdict.status not in (Status.VIOLATED, Status.CRASHED):
            continue
        marks, members = _marks(verdict), [verdict]
        for group in [group for group in groups if group[0] & marks]:
            groups.remove(group)
            marks, members = marks | group[0], group[1] + members
        groups.append((marks, members))
    groups = _attached(groups)
    order = {id(verdict): position for position, verdict in enumerate(report.verdicts)}
    found = []
    for _, members in groups:
        alike = _met_by_all(members)
        lead, *others = sorted(members, key=lambda verdict: (not alike and _leads(verdict), order[id(verdict)]))
        found.append(Failure(lead, tuple(others)))
    return sorted(found, key=lambda failure: (_leads(failure.lead), order[id(failure.lead)]))


def _leads(verdict: Verdict) -> tuple[bool, int]:
    """Sort key: a crash before all else, told by the first law that met it, then the more specific law."""
    return (False, 0) if verdict.status is Status.CRASHED else (True, -verdict.rank)


def _met_by_all(members: Sequence[Verdict]) -> bool:
    """Whether several laws say one and the same of what the kernel lacks: none of them is the more specific."""
    findings = [
        finding
        for verdict in members
        for finding in (verdict.counterexample.findings if verdict.counterexample is not None else ())
        if finding.outcome is Outcome.VIOLATED
    ]
    said = {(finding.tensor, finding.message, finding.worst is None) for finding in findings}
    return len(said) == 1 and findings[0].worst is None and bool(findings[0].message)


def _attached(
    groups: list[tuple[set[tuple[str, ...]], list[Verdict]]],
) -> list[tuple[set[tuple[str, ...]], list[Verdict]]]:
    """Groups of laws among several tensors put with the group of the law that finds one of these wrong by itself.

    Wrong numbers stay apart from values that are lost (NaN, infinite): they are another fault.
    """
    cores = [group for group in groups if any(_plain(verdict) for verdict in group[1])]
    rest = [group for group in groups if group not in cores]
    for marks, members in list(rest):
        named = set().union(*(_gradients(verdict) for verdict in members))
        lost = {_lost(verdict) for verdict in members}
        for core in cores:
            alike = [verdict for verdict in core[1] if _plain(verdict) and _lost(verdict) in lost]
            if named & set().union(*(_gradients(verdict) for verdict in alike)):
                core[0].update(marks)
                core[1].extend(members)
                rest.remove((marks, members))
                break
    return cores + rest


def _wrong(verdict: Verdict) -> list[str]:
    """The names of a verdict's wrong tensors."""
    findings = verdict.counterexample.findings if verdict.counterexample is not None else ()
    return [finding.tensor for finding in findings if finding.outcome is Outcome.VIOLATED]


def _plain(verdict: Verdict) -> bool:
    """Whether each wrong tensor is one that the kernel gave, and not a relation among several."""
    wrong = _wrong(verdict)
    return bool(wrong) and all(re.fullmatch(r"\w+|(?:jvp|hvp)\.\w+", name) for name in wrong)


def _lost(verdict: Verdict) -> bool:
    """Whether values are lost, NaN or infinite, and not merely wrong."""
    findings = verdict.counterexample.findings if verdict.counterexample is not None else ()
    return any("finite" in finding.message for finding in findings if finding.outcome is Outcome.VIOLATED)


def _gradients(verdict: Verdict) -> set[str]:
    """The gradients that a verdict's wrong tensors speak of: dq for ``dq`` and for ``hvp.q``."""
    found = set()
    for name in _wrong(verdict):
        found |= {match.replace("hvp.", "d") for match in re.findall(r"(?:jvp|hvp)\.\w+|\bd\w{1,3}\b", name)}
    return found


def tell(verdict: Verdict) -> list[tuple[str, str]]:
    """A violated or crashed verdict as (label, text) lines: law, tensors, worst elements, patterns, case, replay."""
    lines = [("law", verdict.statement)] if verdict.statement else []
    counterexample = verdict.counterexample
    if counterexample is None:
        return [*lines, ("case", "none was kept")]
    wrong = [finding for finding in counterexample.findings if finding.outcome is Outcome.VIOLATED]
    for finding in wrong[:_MOST_TENSORS]:
        lines += _tell_finding(finding)
    if len(wrong) > _MOST_TENSORS:
        lines.append(("", f"and {len(wrong) - _MOST_TENSORS} more tensors: {_names(wrong[_MOST_TENSORS:])}"))
    if counterexample.message:
        lines.append(("crash" if verdict.status is Status.CRASHED else "note", counterexample.message))
    lines += [("note", note) for note in verdict.notes]
    lines.append(("case", counterexample.case))
    shrunk = [part for part in (counterexample.shrink_note, _shrunk_from(counterexample.shrunk_from)) if part]
    if shrunk:
        lines.append(("shrunk", "; ".join(shrunk)))
    lines.append(("replay", counterexample.command or f"gradoracle replay {shlex.quote(counterexample.case)}"))
    return lines


def headline(verdict: Verdict) -> str:
    """One line: status, law, kernel, dtype, and on how many cases."""
    return f"{verdict.status.value} {verdict.law} of {verdict.kernel} in {verdict.dtype} on {extent(verdict)}"


def extent(verdict: Verdict) -> str:
    """On how many of its cases a verdict fails."""
    failing = verdict.cases_crashed if verdict.status is Status.CRASHED else verdict.cases_violated
    if failing == 0:
        return f"all of its {cases(verdict)} cases together"
    return f"{failing} of {cases(verdict)} cases"


def cases(verdict: Verdict) -> int:
    """The cases that a law applied to."""
    return (
        verdict.cases_held
        + verdict.cases_violated
        + verdict.cases_crashed
        + verdict.cases_refused
        + verdict.cases_not_checked
    )


def also(others: Sequence[Verdict]) -> str:
    """The other laws that one fault has broken, each with its dtypes."""
    dtypes: dict[str, list[str]] = {}
    for verdict in others:
        dtypes.setdefault(verdict.law, []).append(verdict.dtype)
    return ", ".join(f"{law} ({', '.join(dict.fromkeys(names))})" for law, names in dtypes.items())


def number(value: float) -> str:
    """A float as a person reads it, with all the digits of a float32."""
    return f"{value:.9g}"


def printable(text: str) -> str:
    """Text that changes nothing of a terminal: what a kernel raised may hold anything."""
    return re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)


def _tell_finding(finding: Finding) -> Iterable[tuple[str, str]]:
    rule = f"[{finding.rule}] " if finding.rule else ""
    ratio = f"; {finding.error:.3g} times its budget" if math.isfinite(finding.error) else ""
    yield finding.tensor, f"{rule}{finding.message or 'is wrong'}{ratio}"
    worst = finding.worst
    if worst is not None:
        place = f"at [{', '.join(map(str, worst.index))}]" if worst.index else ""
        values = "" if math.isnan(worst.got) and math.isnan(worst.true) else _values(worst.got, worst.true)
        sigma = f"error {worst.error_in_sigma:.3g} sigma" if math.isfinite(worst.error_in_sigma) else ""
        told = ", ".join(part for part in (place, values, sigma) if part)
        if told:
            yield "worst", told
    if finding.pattern:
        yield "pattern", finding.pattern


def _values(got: float, true: float) -> str:
    return f"got {number(got)}, true {number(true)}"


def _shrunk_from(case: str) -> str:
    return f"first seen on: {case}" if case else ""


def _names(findings: Iterable[Finding]) -> str:
    return ", ".join(finding.tensor for finding in findings)


def _marks(verdict: Verdict) -> set[tuple[str, ...]]:
    """What two verdicts must share to be one fault; numbers in a pattern depend on the case and are left out."""
    counterexample = verdict.counterexample
    if counterexample is None:
        return {(verdict.kernel, verdict.law)}
    if verdict.status is Status.CRASHED:
        return {(verdict.kernel, "crashed", without_numbers(counterexample.message))}
    wrong = [finding for finding in counterexample.findings if finding.outcome is Outcome.VIOLATED]
    marks: set[tuple[str, ...]] = {
        (verdict.kernel, finding.tensor, without_numbers(finding.pattern)) for finding in wrong
    }
    return marks or {(verdict.kernel, verdict.law)}
