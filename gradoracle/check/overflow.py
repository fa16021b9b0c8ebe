"""Overflow: whether a value on the way that is too large for its dtype makes finite results wrong.

The square of 300 is infinite in float16, and a norm divided by it 0: finite, wrong, and right in float64. That is no
lost precision, which a wider budget would explain: the value is lost.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from gradoracle.check.evidence import Evidence
from gradoracle.check.widened import WidenedRuns
from gradoracle.model.call import Intervention, Kind
from gradoracle.model.call_errors import Crashed, Refused, Unavailable, Wrong
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Outcome


def overflows(evidence: Evidence, derivative: Derivative, names: Collection[str]) -> bool:
    """Whether some tensors break the contract in float64 too once only what overflows as written is infinite.

    Args:
        evidence: evidence of a case on which the tensors break the contract as written and hold when widened.
        derivative: the derivative that the tensors belong to.
        names: the names of the tensors.
    """
    with suppress(Unavailable, Refused, Crashed, Wrong):
        tensors, facts = WidenedRuns(evidence, derivative, None, None).tensors(Intervention(Kind.OVERFLOW))
        found = evidence.compare(derivative, tensors)
        return facts.overflowed and any(f.tensor in names and f.outcome is Outcome.VIOLATED for f in found)
    return False
