"""Fault: verdicts that fail for one cause. Diagnosis: the likely cause, by a name of ``CAUSES``."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradoracle.model.finding import NOWHERE, Region
from gradoracle.model.serialize import NAMED_PROPERTY
from gradoracle.model.severity import Severity

CAUSES = {
    "sign": "a wrong sign",
    "term": "a term of the formula is missing",
    "ratio": "a missing or extra factor",
    "operands": "operands are exchanged, or one stands for another",
    "comparison": "another comparison",
    "offset": "an offset is computed in 32 bits and wraps past 2^31",
}
PLANTED = (
    *CAUSES,
    *("tail", "slice", "transpose", "shift", "sum", "dtype", "stale", "layout", "range", "access"),  # never named
)


@dataclass(frozen=True)
class VerdictKey:
    """Identifies a verdict of a report."""

    property_name: str = field(metadata=NAMED_PROPERTY)
    kernel: str
    dtype: str


@dataclass(frozen=True)
class Diagnosis:
    """The likely cause of a fault.

    Attributes:
        cause: a name of ``CAUSES``; "" if unknown.
        sentence: the cause in words.
        evidence: what points at it.
    """

    cause: str = ""
    sentence: str = ""
    evidence: str = ""

    def __str__(self) -> str:
        return f"{self.sentence}; {self.evidence}" if self.cause else ""


UNKNOWN = Diagnosis()


@dataclass(frozen=True)
class Fault:
    """Verdicts that fail for one cause.

    Attributes:
        verdicts: the one that compares the first wrong tensor with the truth leads, else the most specific.
        specific: the most specific of those about memory and repeated calls, where the first compares numbers.
        tensors: the kernel's tensors that one of them finds wrong by itself.
        region: where the first of these is wrong, on the first case of the stream on which it is.
        severity: the gravest of them, where that was asked for.
        diagnosis: the likely cause by these verdicts; empty where no cause is likely.
    """

    verdicts: tuple[VerdictKey, ...]
    specific: VerdictKey | None = None
    tensors: tuple[str, ...] = ()
    region: Region = NOWHERE
    severity: Severity | None = None
    diagnosis: Diagnosis = UNKNOWN
