"""Failure: the verdicts that one fault has broken, told by the most specific of its laws."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gradoracle.diagnosis import UNKNOWN, Diagnosis, diagnose
from gradoracle.finding import Finding, Outcome
from gradoracle.pattern import EVERYWHERE
from gradoracle.symptom import of_verdicts
from gradoracle.verdict import FAILING, Counterexample, Report, Status, Verdict, without_numbers

_MOST_TENSORS = 4  # of one counterexample that are told in full


@dataclass(frozen=True)
class Failure:
    """Verdicts of one fault, which ``lead`` tells; ``direct`` shows a wrong tensor itself where ``lead`` does not.

    ``diagnosis`` is its likely cause, by these verdicts and all of the kernel that hold; empty where nothing is likely.
    """

    lead: Verdict
    others: tuple[Verdict, ...]
    direct: Verdict | None = None
    diagnosis: Diagnosis = UNKNOWN


def failures(report: Report) -> list[Failure]:
    """The failing verdicts of a report, one Failure a fault: the most specific laws first, our own errors last."""
    return faults(report.verdicts)


def faults(verdicts: Sequence[Verdict]) -> list[Failure]:
    """The failing ones of a run's verdicts, one Failure a fault: the most specific laws first, our own errors last.

    Verdicts are of one fault where the stream's own cases, the first and the largest of each, show that: what smaller
    cases show depends on how far there was time to make them smaller.
    """
    groups: list[tuple[set[tuple[str, ...]], list[Verdict]]] = []
    own: dict[int, Verdict] = {}
    for given in verdicts:
        if given.status not in FAILING:
            continue
        verdict = _as_judged(given)
        own[id(verdict)] = given
        marks, members = _marks(verdict), [verdict]
        for group in [group for group in groups if group[0] & marks]:
            groups.remove(group)
            marks, members = marks | group[0], group[1] + members
        groups.append((marks, members))
    groups = _attached(groups)
    order = {id(verdict): position for position, verdict in enumerate(verdicts)}
    found = []
    for _, judged in groups:
        alike = all(finding.malformed for verdict in judged for finding in _violations(verdict))
        members = [own[id(verdict)] for verdict in judged]
        lead, *others = sorted(members, key=lambda verdict: (not alike and _leads(verdict), order[id(verdict)]))
        measured = (verdict for verdict in others if _measured(verdict))
        held = [v for v in verdicts if v.status is Status.HOLDS and v.kernel == lead.kernel]
        likely = diagnose(of_verdicts([*members, *held]))
        found.append(Failure(lead, tuple(others), None if _measured(lead) else next(measured, None), likely))
    return sorted(found, key=lambda failure: (_leads(failure.lead), order[id(failure.lead)]))


def _as_judged(verdict: Verdict) -> Verdict:
    """A copy of a verdict whose counterexample shows what the stream's own cases showed, first and largest."""
    found = verdict.counterexample
    if found is None:
        return replace(verdict)
    seen = (*(found.first_findings or found.findings), *found.further)
    return replace(verdict, counterexample=replace(found, findings=seen, first_findings=(), further=()))


def _leads(verdict: Verdict) -> tuple[int, int]:
    """Sort key: a crash first, told by the first law that met it, then the more specific law, an error last."""
    ranks = {Status.CRASHED: (0, 0), Status.ERROR: (2, 0)}
    return ranks.get(verdict.status, (1, -verdict.rank))


def _attached(
    groups: list[tuple[set[tuple[str, ...]], list[Verdict]]],
) -> list[tuple[set[tuple[str, ...]], list[Verdict]]]:
    """Groups of laws among several tensors put with the group of the law that finds one of these wrong by itself.

    Wrong numbers stay apart from values that are lost (NaN, infinite): they are another fault.
    """
    cores = [group for group in groups if any(_plain(verdict) for verdict in group[1])]
    apart = []
    for marks, members in (group for group in groups if group not in cores):
        fit = [(_shared(members, core[1]), len(core[1]), -place) for place, core in enumerate(cores)]
        shared, _, place = max(fit, default=(0, 0, 0))
        if shared:
            cores[-place][0].update(marks)
            cores[-place][1].extend(members)
        else:
            apart.append((marks, members))
    return cores + apart


def _shared(members: Sequence[Verdict], core: Sequence[Verdict]) -> int:
    """How many of the tensors that ``members`` speak of ``core`` finds wrong, in the same way and kernel."""
    if members[0].kernel != core[0].kernel:
        return 0
    named = set().union(*(_named(verdict) for verdict in members))
    lost = {_lost(verdict) for verdict in members}
    return len(named & set().union(*(_compared(verdict) for verdict in core if _lost(verdict) in lost)))


def _violations(verdict: Verdict) -> list[Finding]:
    """What a verdict's counterexample shows to be wrong."""
    findings = verdict.counterexample.findings if verdict.counterexample is not None else ()
    return [finding for finding in findings if finding.outcome is Outcome.VIOLATED]


def _plain(verdict: Verdict) -> bool:
    """Whether each wrong tensor is one that the kernel gave, and not a relation among several."""
    wrong = _violations(verdict)
    return bool(wrong) and all(re.fullmatch(r"\w+|(?:jvp|hvp)\.\w+", f.tensor) and not _placeless(f) for f in wrong)


def _placeless(finding: Finding) -> bool:
    """Whether a finding points at no element: a law among tensors that NaN in one of them kept from being judged."""
    return finding.worst is not None and finding.worst.index == () and math.isnan(finding.worst.true)


def _measured(verdict: Verdict) -> bool:
    """Whether a tensor that the kernel gave is shown beside the truth: what it gave and what is true."""
    worst = [finding.worst for finding in _violations(verdict)]
    return _plain(verdict) and all(each is not None and not math.isnan(each.true) for each in worst)


def _lost(verdict: Verdict) -> bool:
    """Whether values are lost, NaN or infinite, and not merely wrong."""
    return any(finding.lost for finding in _violations(verdict))


def _named(verdict: Verdict) -> set[str]:
    """The words that may be tensors a verdict's wrong ones speak of: dq and dk of ``<q, dq> - <k, dk>``."""
    words = {name for each in _violations(verdict) for name in each.among}
    words |= {word for each in _violations(verdict) for word in re.findall(r"(?:jvp|hvp)\.\w+|\w+", each.tensor)}
    return {_differentiated(word) for word in words}


def _compared(verdict: Verdict) -> set[str]:
    """The tensors that a verdict finds wrong, each by itself: dk for ``dk, keys reversed``, but not ``o - 1``."""
    names = (re.match(r"(?:jvp\.|hvp\.)?\w+(?=$|,)", finding.tensor) for finding in _violations(verdict))
    return {_differentiated(name[0]) for name in names if name is not None}


def _differentiated(tensor: str) -> str:
    """What a tangent or a Hessian-vector product is the derivative of: an output, a gradient."""
    return tensor.removeprefix("jvp.").replace("hvp.", "d")


def tell(verdict: Verdict) -> list[tuple[str, str]]:
    """A violated or crashed verdict as (label, text) lines: law, tensors, worst elements, patterns, case, replay."""
    lines = [("law", verdict.statement)] if verdict.statement else []
    counterexample = verdict.counterexample
    if counterexample is None:
        return [*lines, ("case", "none was kept")]
    lines += _tell_findings(counterexample, _MOST_TENSORS)
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
    """What the tensors themselves show of a fault whose leading law compares something else, as (label, text) lines."""
    direct = failure.direct
    if direct is None or direct.counterexample is None:
        return []
    lines = [("directly", f"{direct.law}, {direct.dtype}"), *_tell_findings(direct.counterexample, 1)]
    replay = _replay(direct.counterexample)
    known = failure.lead.counterexample
    return lines if known is not None and _replay(known) == replay else [*lines, ("replay", replay)]


def tell_all(failure: Failure) -> list[tuple[str, str]]:
    """A fault as (label, text) lines: its leading law, the tensors themselves, the likely cause, other laws."""
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
    """One line: status, law, kernel, dtype, and on how many cases."""
    return f"{verdict.status.value} {verdict.law} of {verdict.kernel} in {verdict.dtype} on {extent(verdict)}"


def extent(verdict: Verdict) -> str:
    """On how many of its cases a verdict fails."""
    failing = failing_cases(verdict)
    if failing == 0:
        return f"all of its {cases(verdict)} cases together"
    return f"{failing} of {cases(verdict)} cases"


def failing_cases(verdict: Verdict) -> int:
    """On how many cases a verdict is what it is; 0 where all cases are so together."""
    counts = {Status.CRASHED: verdict.cases_crashed, Status.ERROR: verdict.cases_error}
    return counts.get(verdict.status, verdict.cases_violated)


def cases(verdict: Verdict) -> int:
    """The cases that a law applied to."""
    return (
        verdict.cases_held
        + verdict.cases_violated
        + verdict.cases_crashed
        + verdict.cases_error
        + verdict.cases_refused
        + verdict.cases_not_checked
    )


def also(failure: Failure) -> str:
    """The other laws that one fault has broken, each with its dtypes; "" where there are none."""
    dtypes: dict[str, list[str]] = {}
    for verdict in failure.others:
        dtypes.setdefault(verdict.law, []).append(verdict.dtype)
    named = {law: ", ".join(dict.fromkeys(names)) for law, names in dtypes.items()}
    more = len(named.keys() - {failure.lead.law})
    if not more:
        return f"the same in {', '.join(named.values())}" if named else ""
    laws = ", ".join(f"{law} ({names})" for law, names in named.items())
    return f"{more} more {'law shows' if more == 1 else 'laws show'} the same fault: {laws}"


def number(value: float) -> str:
    """A float as a person reads it, with all the digits of a float32."""
    return f"{value:.9g}"


def printable(text: str) -> str:
    """Text that changes nothing of a terminal: what a kernel raised may hold anything."""
    return re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)


def _tell_findings(counterexample: Counterexample, most: int) -> list[tuple[str, str]]:
    """The wrong tensors of a case, ``most`` of them in full."""
    wrong = [finding for finding in counterexample.findings if finding.outcome is Outcome.VIOLATED]
    lines = [line for finding in wrong[:most] for line in _tell_finding(finding, counterexample.first_findings)]
    if more := wrong[most:]:
        lines.append(("", f"and {len(more)} more {'tensor' if len(more) == 1 else 'tensors'}: {_names(more)}"))
    return lines


def _replay(counterexample: Counterexample) -> str:
    return counterexample.command or f"gradoracle replay {shlex.quote(counterexample.case)}"


def _tell_finding(finding: Finding, first: Sequence[Finding]) -> Iterable[tuple[str, str]]:
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
    for other in first:
        if _alike(other, finding) and other.pattern and _kind(other.pattern) != _kind(finding.pattern):
            yield "pattern", f"on the first case: {other.pattern}"


def _alike(one: Finding, other: Finding) -> bool:
    """Whether two findings are of one tensor and rule; which of both local rules decides hangs on the recipes."""
    rules = {finding.rule.replace("worst case", "local") for finding in (one, other)}
    return one.tensor == other.tensor and one.lost == other.lost and len(rules) == 1


def _kind(pattern: str) -> str:
    """A pattern without its numbers, which depend on the case."""
    return re.sub(r"(?<!\bdim )\b\d[\d.e+-]*", "#", pattern)


def _values(got: float, true: float) -> str:
    return f"got {number(got)}, true {number(true)}"


def _shrunk_from(case: str) -> str:
    return f"first seen on: {case}" if case else ""


def _names(findings: Iterable[Finding]) -> str:
    return ", ".join(finding.tensor for finding in findings)


def _marks(verdict: Verdict) -> set[tuple[str, ...]]:
    """What two verdicts must share to be one fault: where a tensor is wrong, and whether values are lost there.

    The same tensor, or the derivative of one, unless the place says more than "every element".
    """
    counterexample = verdict.counterexample
    if counterexample is None:
        return {(verdict.kernel, verdict.law)}
    if verdict.status in (Status.CRASHED, Status.ERROR):
        return {(verdict.kernel, verdict.status.value, without_numbers(counterexample.message))}
    marks: set[tuple[str, ...]] = set()
    for finding in _violations(verdict):
        place = _kind(finding.place).replace("= # (the last)", ">= # (of #)")  # the last index alone is a tail too
        fault = (verdict.kernel, place, "lost" if finding.lost else "wrong")
        marks.add((*fault, _differentiated(finding.tensor)))
        if finding.place not in ("", EVERYWHERE):  # a wrong tail of o makes that of dq, jvp.o and hvp.q wrong
            marks.add(fault)
    return marks or {(verdict.kernel, verdict.law)}
