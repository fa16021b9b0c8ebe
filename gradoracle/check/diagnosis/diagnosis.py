"""Diagnosis: the likely cause of a fault, where two cases show one edit of the definition that gives what is wrong.

Of all else nothing is named: no cause is better than a guess (docs/background/mutation.md has the hit rate).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradoracle.check.diagnosis.reconstruction import agreed
from gradoracle.model.fault import CAUSES, UNKNOWN, Diagnosis
from gradoracle.model.finding import NO_EDIT, EditedDefinition, Finding, Outcome
from gradoracle.model.job import PropertyResult
from gradoracle.model.property import Property, PropertyKind
from gradoracle.model.verdict import Status, Verdict

_FACTS = (PropertyKind.MEMORY, PropertyKind.REPETITION, PropertyKind.LAYOUT)  # these say more than any value does


@dataclass(frozen=True)
class Symptom:
    """What one violated property shows of one kernel.

    Attributes:
        property_name: its name.
        kind: the kind of the property.
        cause: the cause that it points at where it is violated alone.
        findings: the violations.
        edited: the edit of the definition that gives it, where one was found.
    """

    property_name: str
    kind: PropertyKind = PropertyKind.RELATION
    cause: str = ""
    findings: tuple[Finding, ...] = ()
    edited: EditedDefinition = NO_EDIT

    @property
    def order(self) -> int:
        """The least order of the derivatives whose tensors are wrong."""
        return min((f.derivative.order for f in self.findings if f.derivative is not None), default=0)


def of_verdicts(verdicts: Sequence[Verdict]) -> list[Symptom]:
    """The symptoms of the failing verdicts of one kernel that have findings."""
    shown = [(verdict, verdict.counterexample) for verdict in verdicts if verdict.counterexample is not None]
    found = [
        Symptom(v.property_name, v.kind, v.cause, _violated(kept.findings), kept.edited_definition) for v, kept in shown
    ]
    return [symptom for symptom in found if symptom.findings]


def of_results(results: Sequence[PropertyResult], properties: Mapping[str, Property]) -> list[Symptom]:
    """The symptoms of violations on several cases, one a property."""
    by_property: dict[str, list[PropertyResult]] = {}
    for result in results:
        if result.status is Status.VIOLATED:
            by_property.setdefault(result.property_name, []).append(result)
    return [
        Symptom(
            name,
            properties[name].kind,
            properties[name].cause,
            tuple(finding for result in own for finding in _violated(result.findings)),
            agreed([result.edited for result in own]),
        )
        for name, own in by_property.items()
    ]


def diagnose(symptoms: Sequence[Symptom]) -> Diagnosis:
    """The likely cause of what the symptoms of one kernel show; empty where none is known."""
    findings = [finding for symptom in symptoms for finding in symptom.findings]
    declared = {finding.cause or symptom.cause for symptom in symptoms for finding in symptom.findings}
    if len(declared) == 1 and (cause := declared.pop()):  # of another cause the property's own message says so
        return (
            Diagnosis(cause, CAUSES[cause], f"only {symptoms[0].property_name} is violated")
            if cause in CAUSES
            else UNKNOWN
        )
    if any(symptom.kind in _FACTS for symptom in symptoms) or any(finding.malformed for finding in findings):
        return UNKNOWN
    measured = [symptom for symptom in symptoms if symptom.kind is PropertyKind.ORACLE]
    first = min((symptom.order for symptom in measured), default=0)  # what is wrong first is wrong in derivatives, too
    edited = [symptom.edited for symptom in measured if symptom.order == first and symptom.edited.cause]
    if len({each.cause for each in edited}) != 1:
        return UNKNOWN
    return Diagnosis(edited[0].cause, CAUSES[edited[0].cause], edited[0].sentence)


def _violated(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.outcome is Outcome.VIOLATED)
