"""Symptom: what one law showed of one kernel and dtype, from a report or from a single case; plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gradoracle.model.case import Case
from gradoracle.model.finding import NO_LIKENESS, Finding, Likeness, Outcome
from gradoracle.model.formats import DTYPES, FORMATS
from gradoracle.model.job import LawResult
from gradoracle.model.property import Property, PropertyKind
from gradoracle.model.verdict import Status, Verdict

_DECIDED = (Status.HOLDS, Status.VIOLATED, Status.CRASHED)


@dataclass(frozen=True)
class Symptom:
    """What one law showed of one kernel and dtype.

    Attributes:
        law: its name.
        dtype: of the cases.
        broken: whether it is violated, or the kernel crashed; else it holds.
        findings: what is wrong; empty where it holds.
        further: the same on other cases, such as the case before it was shrunk.
        kind: what the law compares.
        cause: what the law points at where it is violated alone.
        preset: another preset under which the case would hold.
        formula: which other formula gives what the kernel gave, where one was found.
    """

    law: str
    dtype: str
    broken: bool
    findings: tuple[Finding, ...] = ()
    further: tuple[Finding, ...] = ()
    kind: PropertyKind = PropertyKind.RELATION
    cause: str = ""
    preset: str = ""
    formula: Likeness = NO_LIKENESS


def of_verdicts(verdicts: Sequence[Verdict]) -> list[Symptom]:
    """The symptoms of one kernel in a report; verdicts that decide nothing are none."""
    return [_of_verdict(verdict) for verdict in verdicts if verdict.status in _DECIDED]


def of_results(results: Sequence[LawResult], case: Case, laws: Mapping[str, Property]) -> list[Symptom]:
    """The symptoms of one case that several laws judged."""
    return [
        Symptom(
            result.law,
            case.dtype,
            result.status is not Status.HOLDS,
            _violated(result.findings),
            kind=laws[result.law].kind,
            cause=laws[result.law].cause,
            preset=result.preset,
            formula=result.formula,
        )
        for result in results
        if result.status in _DECIDED
    ]


def _of_verdict(verdict: Verdict) -> Symptom:
    broken, shown = verdict.status is not Status.HOLDS, verdict.counterexample
    own = Symptom(verdict.law, verdict.dtype, broken, kind=verdict.kind, cause=verdict.cause)
    if not broken or shown is None:
        return own
    wrong, further = _violated(shown.findings), (*shown.first_findings, *shown.further)
    return replace(own, findings=wrong, further=further, preset=shown.preset, formula=shown.formula)


def _violated(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.outcome is Outcome.VIOLATED)


@dataclass(frozen=True)
class Seen:
    """All symptoms of one kernel: tensors that are wrong, and laws that hold."""

    broken: tuple[Symptom, ...]
    held: tuple[Symptom, ...]

    @property
    def finest(self) -> Seen:
        """The symptoms of the most precise dtype in which a property that compares with the truth is violated.

        All symptoms where there is none. Coarser rounding hides a fault.
        """
        dtypes = {symptom.dtype for symptom, _ in self.tensors}
        finest = max(DTYPES.keys() & dtypes, key=lambda dtype: FORMATS[dtype].bits, default="")
        if not finest:
            return self
        broken, held = (
            tuple(symptom for symptom in symptoms if symptom.dtype == finest) for symptoms in (self.broken, self.held)
        )
        return Seen(broken, held)

    @property
    def tensors(self) -> list[tuple[Symptom, Finding]]:
        """Tensors that differ from the truth, of the lowest derivative that has any.

        An error in forward also shows in all derivatives, and less clearly.
        """
        found = [
            (symptom, finding)
            for symptom in self.broken
            if symptom.kind is PropertyKind.ORACLE
            for finding in symptom.findings
        ]
        order = [0 if finding.derivative is None else finding.derivative.order for _, finding in found]
        return [each for each, own in zip(found, order, strict=True) if own == min(order)]

    @property
    def wrong(self) -> list[Finding]:
        """The wrong tensors on all cases that are known; of all laws where none compares any with the truth."""
        pairs = self.tensors or [(symptom, finding) for symptom in self.broken for finding in symptom.findings]
        names = {finding.tensor for _, finding in pairs}
        first = [f for s in dict.fromkeys(s for s, _ in pairs) for f in s.further if f.tensor in names]
        return [*(finding for _, finding in pairs), *first]

    @property
    def formulas(self) -> list[Likeness]:
        """The formulas that explain wrong tensors, one a symptom that has one."""
        return [s.formula for s in dict.fromkeys(s for s, _ in self.tensors) if s.formula.cause]

    @property
    def lost(self) -> bool:
        """Whether what is wrong is NaN or infinite, and nothing is merely wrong."""
        return bool(self.wrong) and all(finding.lost for finding in self.wrong)
