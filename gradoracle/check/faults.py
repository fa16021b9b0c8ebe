"""Faults: groups the failing verdicts of a run by what they share, and names the likely cause of each group."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from gradoracle.check.diagnosis.diagnosis import diagnose, of_verdicts
from gradoracle.model.derivative import Derivative
from gradoracle.model.fault import UNKNOWN, Fault
from gradoracle.model.finding import NOWHERE, Finding, Outcome
from gradoracle.model.property import DIRECT, PropertyKind
from gradoracle.model.severity import Severity, gravest
from gradoracle.model.signature import undifferentiated
from gradoracle.model.verdict import FAILING, Status, Verdict
from gradoracle.model.wording import without_numbers

_WAYS = ("wrong", "lost", "precision")  # how values are wrong: merely, by NaN and infinity, or as widening mends
_TELLING = (PropertyKind.MEMORY, PropertyKind.REPETITION, PropertyKind.COMPILATION)  # and not that numbers are wrong


def grouped(verdicts: Sequence[Verdict]) -> list[Fault]:
    """Group the failing verdicts into Faults, that of the first wrong tensor first, gradoracle's own errors last.

    A fault is led by the property that compares its first wrong tensor with the truth, outputs before their
    derivatives; where there is none, by the most specific one.

    Grouping looks at the stream's own cases, the first and the largest of each verdict: what shrunk cases show depends
    on the time there was for shrinking.
    """
    groups: list[_Group] = []
    own: dict[int, Verdict] = {}
    for given in verdicts:
        if given.status not in FAILING:
            continue
        verdict = _as_judged(given)
        own[id(verdict)] = given
        new = _Group(_marks(verdict), [verdict])
        for group in [group for group in groups if group.marks & new.marks]:
            groups.remove(group)
            new = _Group(new.marks | group.marks, group.members + new.members)
        groups.append(new)
    groups = _consequences(_attached(groups))
    order = {id(verdict): position for position, verdict in enumerate(verdicts)}
    found: list[tuple[tuple[int, ...], Fault]] = []
    for judged in (group.members for group in groups):
        alike = all(map(_malformed, judged))
        keys = {id(own[id(v)]): (*(() if alike else _place(v)), order[id(own[id(v)])]) for v in judged}
        lead, *others = sorted((own[id(verdict)] for verdict in judged), key=lambda verdict: keys[id(verdict)])
        telling = [_as_judged(verdict) for verdict in (lead, *others)]
        specific = None if alike or not _measured(telling[0]) else _most_specific(telling[1:])
        plain = [finding for verdict in telling for finding in _violations(verdict) if finding.is_plain]
        fault = Fault(
            tuple(each.key for each in (lead, *others)),
            None if specific is None else specific.key,
            tuple(dict.fromkeys(finding.tensor for finding in plain)),
            plain[0].region if plain else NOWHERE,
        )
        found.append(((*_place(telling[0]), order[id(lead)]), fault))
    return [fault for _, fault in sorted(found, key=lambda each: each[0])]


def diagnosed(faults: Sequence[Fault], verdicts: Sequence[Verdict]) -> list[Fault]:
    """The faults with their severities and likely causes, the gravest first.

    A cause is read from what the fault's verdicts show; lost precision has none. A verdict that is left open belongs to
    no fault that others decide.
    """
    known = {verdict.key: verdict for verdict in verdicts}
    found = []
    for fault in faults:
        decided = tuple(key for key in fault.verdicts if not known[key].is_open)
        fault = replace(fault, verdicts=decided or fault.verdicts)
        if fault.specific not in fault.verdicts[1:]:
            fault = replace(fault, specific=None)
        members = [known[key] for key in fault.verdicts]
        severity = gravest(verdict.severity for verdict in members)
        likely = UNKNOWN if severity is Severity.PRECISION else diagnose(of_verdicts(members))
        found.append(replace(fault, severity=severity, diagnosis=likely))
    return sorted(found, key=lambda fault: 0 if fault.severity is None else fault.severity.rank)


def _as_judged(verdict: Verdict) -> Verdict:
    """A copy of a verdict whose counterexample has the findings of the stream's first and largest cases."""
    found = verdict.counterexample
    if found is None:
        return replace(verdict)
    seen = (*(found.first_findings or found.findings), *found.further)
    return replace(verdict, counterexample=replace(found, findings=seen, first_findings=(), further=()))


def _place(verdict: Verdict) -> tuple[int, ...]:
    """Sort key of what leads a fault: crashes, what is wrong before what is not precise, the first wrong tensor, the
    more specific; errors of gradoracle last."""
    status = {Status.CRASHED: 0, Status.ERROR: 3}.get(verdict.status, 1)
    if verdict.severity in (Severity.PRECISION, Severity.ROBUSTNESS):
        status = 2
    first = min(_orders(verdict), default=0)
    if verdict.kind in DIRECT or _measured(verdict):
        return status, 0, 2 * first + (verdict.kind is PropertyKind.DEFINITION), -verdict.rank
    if verdict.kind in _TELLING:
        return status, 1, 0, -verdict.rank
    alone = all(len(finding.named) == 1 for finding in _violations(verdict))
    return (status, 2, first, -verdict.rank) if alone else (status, 3, 0, -verdict.rank)


def _most_specific(others: Sequence[Verdict]) -> Verdict | None:
    """The most specific of the properties that say more than that numbers are wrong; None where there is none."""
    telling = [verdict for verdict in others if verdict.kind in _TELLING and not _malformed(verdict)]
    return max(telling, key=lambda verdict: verdict.rank, default=None)


def _malformed(verdict: Verdict) -> bool:
    """Whether all that it finds is that tensors are missing or of another shape or dtype."""
    return all(finding.malformed for finding in _violations(verdict))


@dataclass
class _Group:
    """Verdicts of one kernel that are taken for one fault, and their marks."""

    marks: set[tuple[str, ...]]
    members: list[Verdict]

    @property
    def kernel(self) -> str:
        return self.members[0].kernel

    @property
    def is_core(self) -> bool:
        """Whether it finds a tensor wrong by itself."""
        return any(_plain(verdict) for verdict in self.members)

    @property
    def is_apart(self) -> bool:
        """Whether it comes of no wrong tensor: a crash, an error of gradoracle, arguments."""
        return any(v.status is not Status.VIOLATED or v.kind is PropertyKind.ARGUMENTS for v in self.members)

    @property
    def compares(self) -> bool:
        """Whether any of it compares tensors, other than those of two calls."""
        return any(verdict.kind not in _TELLING for verdict in self.members)

    @property
    def ways(self) -> set[str]:
        return {_way(verdict, _violations(verdict)) for verdict in self.members}

    @property
    def is_direct(self) -> bool:
        """Whether any of it compares with the truth alone."""
        return any(verdict.kind in DIRECT for verdict in self.members)

    @property
    def order(self) -> int:
        """The least order of the derivatives that it finds wrong by themselves."""
        return min((order for v in self.members if _plain(v) for order in _orders(v)), default=len(Derivative))

    @property
    def is_second_order(self) -> bool:
        """Whether all that it finds is about second derivatives."""
        return {order for verdict in self.members for order in _orders(verdict)} == {Derivative.HVP.order}

    @property
    def named(self) -> set[str]:
        """The tensors that it is about."""
        return set().union(*map(_named, self.members))

    def wrong(self, ways: Container[str] = _WAYS) -> set[str]:
        """The tensors that it finds wrong in some ways, each by itself."""
        return {name for v in self.members if _way(v, _violations(v)) in ways for name in _compared(v)}

    def take(self, other: _Group) -> None:
        """Take the verdicts of another group."""
        self.marks |= other.marks
        self.members += other.members


def _attached(groups: list[_Group]) -> list[_Group]:
    """Attach groups about relations among tensors to the group that finds most of these tensors wrong by itself.

    Lost values (NaN, infinite) and lost precision stay apart from one another: these are different faults.
    """
    cores, apart = [group for group in groups if group.is_core], []
    for group in (group for group in groups if not group.is_core):
        fit = [
            (len(group.named & core.wrong({*group.ways, "wrong"})), len(core.members), -place)
            for place, core in enumerate(cores)
            if core.kernel == group.kernel
        ]
        shared, _, place = max(fit, default=(0, 0, 0))
        if shared:
            cores[-place].take(group)
        else:
            apart.append(group)
    return cores + apart


def _consequences(groups: list[_Group]) -> list[_Group]:
    """Join groups that follow from one another: that of the first wrong tensor takes the others."""
    kept: list[_Group] = []
    for group in sorted(groups, key=lambda group: min(map(_place, group.members))):
        cause = next((each for each in kept if _implies(each, group)), None)
        if cause is None:
            kept.append(group)
        else:
            cause.take(group)
    return kept


def _implies(cause: _Group, other: _Group) -> bool:
    """Whether what ``other`` finds follows from what ``cause`` finds, as far as names and derivatives tell.

    A tensor that is wrong may lose values and precision, too. The derivatives of a wrong output are wrong, and the
    second derivatives of what has a wrong first one. Where a tensor is wrong by comparison with the truth, relations
    say no more; what programs read and write, and what changes from call to call, belongs to the wrong tensors that
    come of it. Lost values come of lost values, lost precision of lost precision, and of arguments nothing.
    """
    if cause.kernel != other.kernel or cause.is_apart or other.is_apart:
        return False
    if not cause.is_core:
        return not cause.compares or (not other.is_core and bool(cause.named & other.named))
    if "wrong" in cause.ways | other.ways and cause.wrong() & other.wrong():
        return True
    if not other.ways <= cause.ways | (set() if cause.ways == {"precision"} else {"wrong"}):
        return False
    return not other.is_direct or cause.order == 0 or other.is_second_order


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


def _orders(verdict: Verdict) -> set[int]:
    """Those of the derivatives that a verdict's findings are about."""
    return {finding.derivative.order for finding in _violations(verdict) if finding.derivative is not None}


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

    A mark is a kernel, a tensor and how its values are wrong; or instead of the tensor a region that stands out, or
    the property, unless it compares every tensor with the truth.
    """
    counterexample = verdict.counterexample
    if counterexample is None:
        return {(verdict.kernel, verdict.property_name)}
    if verdict.status in (Status.CRASHED, Status.ERROR):
        message = counterexample.message  # "vjp raised ...", "hvp: killed by ...": what happened, in whichever call
        what = message.partition(" raised ")[2] or message.rpartition(": ")[2]
        return {(verdict.kernel, verdict.status.value, without_numbers(what))}
    marks: set[tuple[str, ...]] = set()
    if verdict.kind not in DIRECT:  # one property in several dtypes
        marks.add((verdict.kernel, _way(verdict, _violations(verdict)), "of", verdict.property_name))
    for finding in _violations(verdict):
        way = (verdict.kernel, _way(verdict, [finding]))
        marks.add((*way, undifferentiated(finding.tensor) if finding.is_plain else finding.tensor))
        if finding.region.spans:  # a wrong tail of o makes that of dq, jvp.o and hvp.q wrong
            marks.add((*way, "", *finding.region.shape))
    return marks or {(verdict.kernel, verdict.property_name)}
