"""Judge one property on one evidence: what it finds, and what the kernel raises, becomes a status."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradoracle.check.acceptance import TOO_WIDE
from gradoracle.check.evidence import Evidence
from gradoracle.model.call import derivative_of
from gradoracle.model.call_errors import Crashed, NoDerivative, Refused, Unavailable, Wrong
from gradoracle.model.derivative import Derivative
from gradoracle.model.errors import DeclarationError, named, out_of_memory
from gradoracle.model.finding import Finding, Outcome, malformed
from gradoracle.model.job import PropertyResult
from gradoracle.model.property import Property
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status
from gradoracle.oracle.exact.definition import Raises, Undefined
from gradoracle.oracle.exact.graph import UnsupportedOperator


class EmptyCheck(Exception):
    """A property that applies yielded no finding: an error of gradoracle's own."""


def lacking(error: BaseException) -> str:
    """Where memory ran out for what a judge computes: the truth, budgets, comparisons. The kernel runs elsewhere."""
    on_device = "CUDA" in str(error) or type(error).__name__ == "OutOfMemoryError"
    return f"not enough memory on {'the device' if on_device else 'this machine'} for the truth or its budgets"


def judge_property(prop: Property, evidence: Evidence) -> PropertyResult:
    """Judge one property on one evidence; what the kernel raises becomes a status."""
    findings: list[Finding] = []
    evidence = evidence.under(prop.needs)
    known = evidence.derivatives
    try:
        findings.extend(_attributed(found, known, prop) for found in prop.judge(evidence))
    except (Refused, Unavailable, UnsupportedOperator, Undefined) as reason:
        if (claim := _broken_claim(prop, evidence, reason)) is not None:
            return PropertyResult(prop.name, Status.VIOLATED, (*findings, claim))
        if not any(f.outcome is Outcome.VIOLATED for f in findings):
            status = Status.REFUSED if isinstance(reason, Refused) else Status.NOT_CHECKED
            return PropertyResult(prop.name, status, tuple(findings), str(reason), why=kind_of(reason))
    except Wrong as wrong:
        findings.append(_attributed(wrong.finding, known, prop))
    except Crashed as crash:
        return crashed(prop, crash, findings)
    except DeclarationError as error:
        return crashed(prop, Crashed(str(error)), findings)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            return failed(prop.name, error, findings)
        return PropertyResult(prop.name, Status.NOT_CHECKED, tuple(findings), lacking(error), why=Reason.MEMORY)
    except Exception as error:
        return failed(prop.name, error, findings)
    if not findings:
        return failed(prop.name, EmptyCheck("the property applies to the case but checked nothing"))
    outcomes = {f.outcome for f in findings}
    if Outcome.VIOLATED in outcomes:
        return PropertyResult(prop.name, Status.VIOLATED, tuple(findings))
    if Outcome.HOLDS in outcomes:
        return PropertyResult(prop.name, Status.HOLDS, tuple(findings))
    first = min(findings, key=lambda finding: finding.message)
    text = TOO_WIDE if first.why is Reason.BUDGET else first.message  # equal reasons of many cases count together
    return PropertyResult(prop.name, Status.NOT_CHECKED, tuple(findings), text, why=first.why)


def crashed(prop: Property, crash: Crashed, findings: Sequence[Finding] = ()) -> PropertyResult:
    """The result of a property that a kernel call ended, with the derivative that the call evaluates."""
    about = derivative_of(crash.call) or prop.derivative
    return PropertyResult(prop.name, Status.CRASHED, tuple(findings), str(crash), why=crash.why, crashed_in=about)


def _broken_claim(prop: Property, evidence: Evidence, reason: Exception) -> Finding | None:
    """A violation where a kernel has not the derivative that it says it claims, of the property that compares it."""
    claims, derivative = evidence.kernel.claims, prop.derivative
    if claims is None or derivative is None or not prop.decisive or not isinstance(reason, NoDerivative):
        return None
    message = f"the kernel claims {derivative.named} and has none: {reason}"
    return replace(malformed(derivative.value, message), derivative=derivative)


def _attributed(found: Finding, known: Mapping[str, Derivative], prop: Property) -> Finding:
    """A finding with the derivative that it is about: the highest of those that its tensors belong to.

    A property that needs second derivatives alone is about these, though it compares with a first one, too.
    """
    own = [known[name] for name in found.named if name in known]
    derivative = max(own, key=lambda each: each.order, default=None)
    if derivative is not None and set(prop.needs) == {Derivative.HVP}:
        derivative = Derivative.HVP
    pool = None if found.pool is None else replace(found.pool, among=found.among, derivative=derivative)
    return replace(found, derivative=derivative, pool=pool)


def failed(property_name: str, error: Exception, findings: Sequence[Finding] = ()) -> PropertyResult:
    """The result of a property that raised: an error of gradoracle's own, unless a violation was found before."""
    if any(found.outcome is Outcome.VIOLATED for found in findings):
        return PropertyResult(property_name, Status.VIOLATED, tuple(findings))
    trace = "".join(traceback.format_exception(error))
    return PropertyResult(property_name, Status.ERROR, reason=named(error), trace=trace, why=Reason.ERROR)


def kind_of(error: Exception) -> Reason:
    """The kind of reason for which a property was not judged."""
    if isinstance(error, Unavailable):
        return error.why
    kinds = {Refused: Reason.REFUSED, UnsupportedOperator: Reason.UNREAD, Raises: Reason.OUTSIDE}
    return next((kind for known, kind in kinds.items() if isinstance(error, known)), Reason.UNDEFINED)
