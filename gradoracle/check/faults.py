"""Faults: groups the failing verdicts of a run by what they share, and names the likely cause of each group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gradoracle.check.diagnosis.diagnosis import diagnose
from gradoracle.check.diagnosis.symptom import of_verdicts
from gradoracle.model.causes import ROUNDING
from gradoracle.model.fault import UNKNOWN, Fault, VerdictKey
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.region import NOWHERE
from gradoracle.model.severity import Severity, gravest
from gradoracle.model.signature import undifferentiated
from gradoracle.model.verdict import FAILING, Status, Verdict
from gradoracle.model.wording import without_numbers


def grouped(verdicts: Sequence[Verdict]) -> list[Fault]:
    """Group the failing verdicts into Faults: the most specific properties first, gradoracle's own errors last.

    Grouping looks at the stream's own cases, the first and the largest of each verdict: what shrunk cases show depends
    on the time there was for shrinking.
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
    found: list[tuple[tuple[tuple[int, int], int], Fault]] = []
    for _, judged in groups:
        alike = all(finding.malformed for verdict in judged for finding in _violations(verdict))
        members = [own[id(verdict)] for verdict in judged]
        lead, *others = sorted(members, key=lambda verdict: (not alike and _leads(verdict), order[id(verdict)]))
        measured = (verdict for verdict in others if _measured(verdict))
        direct = None if _measured(lead) else next(measured, None)
        telling = [_as_judged(verdict) for verdict in (direct, lead, *others) if verdict is not None]
        plain = [finding for verdict in telling for finding in _violations(verdict) if finding.is_plain]
        fault = Fault(
            tuple(map(key_of, (lead, *others))),
            None if direct is None else key_of(direct),
            tuple(dict.fromkeys(finding.tensor for finding in plain)),
            plain[0].region if plain else NOWHERE,
        )
        found.append(((_leads(lead), order[id(lead)]), fault))
    return [fault for _, fault in sorted(found, key=lambda each: each[0])]


def diagnosed(faults: Sequence[Fault], verdicts: Sequence[Verdict]) -> list[Fault]:
    """The faults with their severities and likely causes, the gravest first.

    A cause is read from what the fault's verdicts show and from what holds of the same kernel.
    """
    known = {key_of(verdict): verdict for verdict in verdicts}
    found = []
    for fault in faults:
        members = [known[key] for key in fault.verdicts]
        held = [v for v in verdicts if v.status is Status.HOLDS and v.kernel == members[0].kernel]
        severity = gravest(verdict.severity for verdict in members)
        likely = diagnose(of_verdicts([*members, *held]))
        if likely.cause == ROUNDING and severity is Severity.WRONG:
            likely = UNKNOWN  # a rounding goes away when the kernel is widened
        found.append(replace(fault, severity=severity, diagnosis=likely))
    return sorted(found, key=lambda fault: 0 if fault.severity is None else fault.severity.rank)


def key_of(verdict: Verdict) -> VerdictKey:
    """Which verdict it is."""
    return VerdictKey(verdict.law, verdict.kernel, verdict.dtype)


def _as_judged(verdict: Verdict) -> Verdict:
    """A copy of a verdict whose counterexample has the findings of the stream's first and largest cases."""
    found = verdict.counterexample
    if found is None:
        return replace(verdict)
    seen = (*(found.first_findings or found.findings), *found.further)
    return replace(verdict, counterexample=replace(found, findings=seen, first_findings=(), further=()))


def _leads(verdict: Verdict) -> tuple[int, int]:
    """Sort key: crashes first, then the more specific properties, errors last."""
    ranks = {Status.CRASHED: (0, 0), Status.ERROR: (2, 0)}
    return ranks.get(verdict.status, (1, -verdict.rank))


def _attached(
    groups: list[tuple[set[tuple[str, ...]], list[Verdict]]],
) -> list[tuple[set[tuple[str, ...]], list[Verdict]]]:
    """Attach groups about relations among tensors to the group that finds one of these tensors wrong by itself.

    Wrong numbers stay apart from lost values (NaN, infinite) and from lost precision: these are different faults.
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
    """How many of the tensors that ``members`` are about ``core`` finds wrong, of one kernel and in one way."""
    if members[0].kernel != core[0].kernel:
        return 0
    named = set().union(*(_named(verdict) for verdict in members))
    ways = {_way(verdict, _violations(verdict)) for verdict in members}
    return len(
        named & set().union(*(_compared(verdict) for verdict in core if _way(verdict, _violations(verdict)) in ways))
    )


def _violations(verdict: Verdict) -> list[Finding]:
    """The violations of a verdict's counterexample."""
    findings = verdict.counterexample.findings if verdict.counterexample is not None else ()
    return [finding for finding in findings if finding.outcome is Outcome.VIOLATED]


def _plain(verdict: Verdict) -> bool:
    """Whether each wrong tensor is one that the kernel gave, and not a relation among several."""
    wrong = _violations(verdict)
    return bool(wrong) and all(finding.is_plain and not _placeless(finding) for finding in wrong)


def _placeless(finding: Finding) -> bool:
    """Whether a finding points at no element: a relation that could not be evaluated for NaN in one of its tensors."""
    return finding.worst is not None and finding.worst.index == () and math.isnan(finding.worst.true)


def _measured(verdict: Verdict) -> bool:
    """Whether every wrong tensor is shown with what the kernel gave and what is true."""
    worst = [finding.worst for finding in _violations(verdict)]
    return _plain(verdict) and all(each is not None and not math.isnan(each.true) for each in worst)


def _way(verdict: Verdict, findings: Sequence[Finding]) -> str:
    """How values are wrong: lost (NaN, infinite), precision that goes away when widened, or merely wrong."""
    if any(finding.lost for finding in findings):
        return "lost"
    return "precision" if verdict.severity is Severity.PRECISION else "wrong"


def _named(verdict: Verdict) -> set[str]:
    """The tensors that a verdict's findings are about: dq and dk of ``<q, dq> - <k, dk>``."""
    return {undifferentiated(name) for finding in _violations(verdict) for name in finding.named}


def _compared(verdict: Verdict) -> set[str]:
    """The tensors that a verdict finds wrong, each by itself: dk for ``dk, keys reversed``."""
    return {
        undifferentiated(f.named[0]) for f in _violations(verdict) if len(f.named) == 1 and f.derivative is not None
    }


def _marks(verdict: Verdict) -> set[tuple[str, ...]]:
    """The marks of a verdict; verdicts with a mark in common are one fault.

    A mark is a kernel, a region and how values are wrong there; the tensor too, unless the region stands out.
    """
    counterexample = verdict.counterexample
    if counterexample is None:
        return {(verdict.kernel, verdict.law)}
    if verdict.status in (Status.CRASHED, Status.ERROR):
        return {(verdict.kernel, verdict.status.value, without_numbers(counterexample.message))}
    marks: set[tuple[str, ...]] = set()
    for finding in _violations(verdict):
        fault = (verdict.kernel, *finding.region.shape, _way(verdict, [finding]))
        marks.add((*fault, undifferentiated(finding.tensor) if finding.is_plain else finding.tensor))
        if finding.region.spans:  # a wrong tail of o makes that of dq, jvp.o and hvp.q wrong
            marks.add(fault)
    return marks or {(verdict.kernel, verdict.law)}
