"""Outcome: what became of one mutant, as plain values; and the score of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from gradoracle.model.serialize import NAMED_PROPERTY
from gradoracle.mutation.mutant import Mutant


class Fate(str, Enum):
    """What became of a mutant. Only killed and survived ones enter the score."""

    KILLED = "killed"  # by a property
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"  # the same compiled IR in every specialisation
    PROVEN = "proven equivalent"  # by a proof in a file
    CRASHED = "crashed"  # a kernel call raised, or its process died, and no property was violated
    HUNG = "hung"
    REFUSED = "refused"  # the mutant refuses what the kernel takes, and no property was violated
    STILLBORN = "does not import"
    NOT_RUN = "not run"


SCORED = (Fate.KILLED, Fate.SURVIVED)


@dataclass(frozen=True)
class MutantResult:
    """One mutant and its fate.

    Attributes:
        mutant: the one that was tried.
        fate: what became of it.
        property_name: the first property that was violated.
        properties: every property that was violated on that case.
        case: the case on which that was, as one line; "" where it was a pooled rule over many.
        tried: how many cases were judged.
        covering: how many cases of the run execute the mutated line.
        seconds: of the trial.
        reason: of a crash, refusal, hang, failed import or equivalence, in words.
        diagnosis: the cause that the failure report names, one of ``fault.CAUSES``; "": none.
        widened: whether only the widened kernel kills: as written, no property is violated on any case, nor over all.
    """

    mutant: Mutant
    fate: Fate
    property_name: str = field(default="", metadata=NAMED_PROPERTY)
    properties: tuple[str, ...] = ()
    case: str = ""
    tried: int = 0
    covering: int = 0
    seconds: float = 0.0
    reason: str = ""
    diagnosis: str = ""
    widened: bool = False


def score(outcomes: Iterable[MutantResult]) -> float | None:
    """Killed by a property / (killed by a property + survived); None where there is neither."""
    fates = Counter(outcome.fate for outcome in outcomes)
    scored = sum(fates[fate] for fate in SCORED)
    return fates[Fate.KILLED] / scored if scored else None


@dataclass(frozen=True)
class Diagnoses:
    """Causes that the reports of killed mutants name.

    A cause is looked for only where it is known what it should be: a diagnosis takes further cases.

    Attributes:
        known: how many killed mutants have a known cause.
        named: for how many of these the report names a cause.
        right: for how many it names the known one.
    """

    known: int
    named: int
    right: int

    @classmethod
    def of(cls, outcomes: Iterable[MutantResult]) -> Diagnoses:
        """The diagnoses of these outcomes; those killed by a pooled rule have no case to be diagnosed on."""
        asked = [o for o in outcomes if o.fate is Fate.KILLED and o.mutant.cause and o.case]
        named = [o for o in asked if o.diagnosis]
        return cls(len(asked), len(named), sum(o.diagnosis == o.mutant.cause for o in named))
