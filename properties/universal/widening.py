"""The property of a widened kernel: with every float in float64, errors show that the dtype's rounding hides."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from gradoracle.properties.applicability import small_enough

from gradoracle.check.evidence import Evidence, Tensors
from gradoracle.check.severity import NEEDS_INTERPRETER, shrinks_like_rounding
from gradoracle.check.widened import measured, widened
from gradoracle.model.call_errors import NoDerivative, Refused, Unavailable
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.hashing import integers
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import Property, PropertyKind, property
from gradoracle.model.reason import Reason
from gradoracle.model.severity import Severity

ROUNDING = "the error shrinks like rounding when widened, and is more than the definition's budget explains"


def _narrower(case: Case, kernel: Kernel) -> str | None:
    return "float64 cannot be widened" if case.dtype == "float64" else small_enough(case, kernel)


@property(
    needs=(Derivative.FORWARD,), applies=_narrower, one_in=3, kind=PropertyKind.DEFINITION, severity=Severity.WRONG
)
def definition_is_exact_when_widened(evidence: Evidence) -> Iterator[Finding]:
    """With every float in float64 the kernel gives the definition's values, within the rounding of float64.

    Holds because: a correct formula, mask and index give the definition in exact arithmetic; what is left in float64
    is its rounding, and that of constants written to the digits of float32.
    Catches: a wrong formula, mask, index, scale or constant whose error the dtype's rounding hides, in the derivatives
    of autograd too where the kernel has explicit ones, and in further entry points that properties of its family call.
    Cannot catch: lost precision, which goes away when widened; vjp_matches_the_oracle does.
    """
    if not evidence.subject.interprets:
        raise Unavailable(NEEDS_INTERPRETER, Reason.LACKING)
    evidence.forward()  # what is refused as written is refused
    yield from _judged(evidence, _compared(Derivative.FORWARD, Evidence.tensors))
    with suppress(NoDerivative):
        evidence.vjp()
        yield from _judged(evidence, _compared(Derivative.VJP, Evidence.tensors))
    if evidence.kernel.vjp is not None:
        with suppress(Unavailable, Refused):
            yield from _judged(evidence, _compared(Derivative.VJP, Evidence.by_autograd))
    for derivative in (Derivative.JVP, Derivative.HVP)[: 1 + _chosen(evidence, "second order", 2)]:
        for derived in (Evidence.tensors, Evidence.by_autograd):
            with suppress(Unavailable, Refused):  # a kernel need not have it; the properties that match it say so
                yield from _judged(evidence, _compared(derivative, derived))
    if own := _of_an_entry_point(evidence):
        with suppress(Unavailable, Refused):
            yield from _judged(evidence, own.judge)


def _compared(
    derivative: Derivative, derived: Callable[[Evidence, Derivative], Tensors]
) -> Callable[[Evidence], Iterable[Finding]]:
    return lambda evidence: evidence.compare(derivative, derived(evidence, derivative))


def _judged(evidence: Evidence, findings: Callable[[Evidence], Iterable[Finding]]) -> Iterator[Finding]:
    """Findings on the widened kernel; an error that shrinks as rounding does is in no formula, and not checked.

    Where something is violated, they are found again with the rounding of the kernel's own operations.
    """
    as_written = functools.cache(lambda: {each.tensor: each for each in findings(evidence)})
    wide = widened(evidence)
    found = list(findings(wide))
    if any(each.outcome is Outcome.VIOLATED for each in found):
        found = list(findings(measured(wide)))
    for finding in found:
        if finding.outcome is Outcome.VIOLATED:
            own = as_written().get(finding.tensor)
            if own is not None and shrinks_like_rounding(finding, own, evidence.case.dtype):
                yield replace(finding, outcome=Outcome.NOT_CHECKED, message=ROUNDING, why=Reason.BUDGET, pool=None)
                continue
        yield finding


def _of_an_entry_point(evidence: Evidence) -> Property | None:
    """One of the properties of the family that call further entry points of the kernel, another from case to case."""
    case, kernel = evidence.case, evidence.kernel
    calling = [own for own in evidence.subject.family.properties if own.extras and own.kind is PropertyKind.RELATION]
    applying = [own for own in calling if own.applies(case, kernel) is None]
    return applying[_chosen(evidence, "entry point", len(applying))] if applying else None


def _chosen(evidence: Evidence, what: str, count: int) -> int:
    """From 0 to count - 1, by the seed of the case: each costs a call and a budget."""
    return int(integers(evidence.case.seed, what, 1, 0, count)[0])
