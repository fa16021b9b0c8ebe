"""One kernel judged by one property on one case, as the engine judges it; and rows of wrong kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradoracle.properties.universal import UNIVERSAL

from gradoracle.cases.sample import build
from gradoracle.check.evidence import Evidence
from gradoracle.check.judge_property import judge_property
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.case import Case, parse
from gradoracle.model.family import Family
from gradoracle.model.job import PropertyResult
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import Property
from gradoracle.oracle.truth import Oracle

PROPERTIES = {prop.name: prop for prop in UNIVERSAL}
"""The properties of every family, by name."""


def property_of(family: Family, name: str) -> Property:
    """A property of a family or of all families, by its name."""
    (found,) = (prop for prop in (*family.properties, *UNIVERSAL) if prop.name == name)
    return found


def evidence(case: Case | str, kernel: Kernel, oracle: Oracle, device: str = "cpu") -> Evidence:
    """Evidence of a kernel on a case or case line, on a device."""
    case, family = parse(case)[2] if isinstance(case, str) else case, oracle.family
    sample = build(case, family.signature, domains=family.domains)
    return Evidence(case, sample, KernelRunner(family, kernel, device=device), oracle)


def judge(prop: Property | str, case: Case | str, kernel: Kernel, oracle: Oracle) -> PropertyResult:
    """The result of a property on a case, which it has to apply to."""
    return judge_on(prop, evidence(case, kernel, oracle))


def judge_on(prop: Property | str, own: Evidence) -> PropertyResult:
    """The result of a property on evidence, which it has to apply to."""
    family, subject = own.oracle.family, own.subject.kernel
    prop = property_of(family, prop) if isinstance(prop, str) else prop
    reason = prop.applies(own.case, subject)
    assert reason is None, f"{prop.name} does not apply: {reason}"
    return judge_property(prop, own)


@dataclass(frozen=True)
class Row:
    """A wrong kernel with the property that it violates on a case, and correct kernels that satisfy it there.

    Attributes:
        property_name: the property's name.
        fault: what is wrong with the kernel, for the test's id.
        case: a case or a case line.
        wrong: the kernel.
        correct: kernels that satisfy the property, one at least.
        oracle: of the kernels' family.
        also: further properties that the wrong kernel violates and the correct ones satisfy.
        holds: properties that the wrong kernel satisfies all the same.
        says: a part of the message of a violation.
        marks: of pytest.
    """

    property_name: str
    fault: str
    case: Case | str
    wrong: Kernel
    correct: Sequence[Kernel]
    oracle: Oracle
    also: Sequence[str] = ()
    holds: Sequence[str] = ()
    says: str = ""
    marks: Sequence[Any] = ()


def last_cases(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Each property of the rows with the case line of the last of its rows."""
    return list({row.property_name: str(row.case) for row in rows}.items())
