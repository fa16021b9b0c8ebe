"""Fault: verdicts that fail for one cause; Diagnosis: what the cause is likely to be."""

from __future__ import annotations

from dataclasses import dataclass

from gradoracle.model.region import NOWHERE, Region


@dataclass(frozen=True)
class VerdictKey:
    """Which verdict of a report."""

    law: str
    kernel: str
    dtype: str


@dataclass(frozen=True)
class Diagnosis:
    """The likely cause of a fault.

    Attributes:
        cause: a name of ``causes.CAUSES``, or "" where nothing can be said.
        sentence: the cause in words.
        evidence: what was seen that points at it.
    """

    cause: str = ""
    sentence: str = ""
    evidence: str = ""

    def __str__(self) -> str:
        return f"{self.sentence} ({self.evidence})" if self.cause else ""


UNKNOWN = Diagnosis()


@dataclass(frozen=True)
class Fault:
    """Verdicts that fail for one cause.

    Attributes:
        verdicts: the one that tells the fault first, which is that of the most specific property.
        direct: one that shows a wrong tensor itself, where the first does not.
        tensors: those that the kernel gave and that one of them finds wrong by itself.
        region: where the first of these is wrong, on the first case of the stream on which it is.
        diagnosis: by these verdicts and all of the kernel that hold; empty where nothing is likely.
    """

    verdicts: tuple[VerdictKey, ...]
    direct: VerdictKey | None = None
    tensors: tuple[str, ...] = ()
    region: Region = NOWHERE
    diagnosis: Diagnosis = UNKNOWN
