"""Search: the largest t at which a mutant is hidden, and what the property of the widened kernel says there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gradoracle.execution.process import Phase
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.outcome import Fate, MutantResult
from gradoracle.mutation.sources import Source
from gradoracle.mutation.trial import Rehearsal, Stage, Trial, Unmutated
from gradoracle.mutation.trial import entry as trial_entry

from .rows import CAUGHT, MISSED, SEEN, UNSCALED, UNSEEN, Row
from .scaled import scaled

SMALLEST = 16  # t is at least 4^-16, 2e-10: below the rounding of float32, which some outputs in bfloat16 have


@dataclass(frozen=True)
class Search:
    """Job: find the t of a mutant.

    Attributes:
        mutant: unscaled.
        source: that it is planted in.
        order: of the cases that execute its line.
        known: by stage, what ``Trial`` needs.
    """

    family: str
    mutant: Mutant
    source: Source
    order: tuple[int, ...]
    known: dict[Stage, str]


def entry(given: Any) -> Callable[[Rehearsal | Search, Phase], Unmutated | Row]:
    """The worker's entry, as ``gradoracle.mutation.trial.entry``."""
    work = trial_entry(given)

    def found(job: Rehearsal | Search, phase: Phase) -> Unmutated | Row:
        if isinstance(job, Rehearsal):
            seen = work(job, phase)
            assert isinstance(seen, Unmutated)
            return seen

        def judged(exponent: int, stage: Stage) -> MutantResult:
            planted = scaled(job.mutant, 4.0**-exponent)
            assert planted is not None
            outcome = work(Trial(planted, job.source, job.order, job.known[stage]), phase)
            assert isinstance(outcome, MutantResult)
            return outcome

        return searched(job, judged)

    return found


def searched(job: Search, judged: Callable[[int, Stage], MutantResult]) -> Row:
    """The row of a mutant; ``judged`` says what the properties of a stage find where t is 4 to the minus n."""
    begun = time.monotonic()
    own = job.mutant
    row = Row(job.family, own.key, own.operator, f"{own.module}:{own.line} {own.function}", own.before, own.after, "")

    def ended(result: str, **more: str) -> Row:
        return replace(row, result=result, seconds=round(time.monotonic() - begun, 1), **more)

    last = judged(SMALLEST, Stage.DECISIVE)
    if last.fate is not Fate.SURVIVED:
        return ended(SEEN if last.fate is Fate.KILLED else UNSCALED, seen_by=last.property_name or last.reason)
    seen, hidden, by = -1, SMALLEST, ""
    while hidden - seen > 1:
        middle = (seen + hidden) // 2
        outcome = judged(middle, Stage.DECISIVE)
        if outcome.fate is Fate.SURVIVED:
            hidden = middle
        else:
            seen, by = middle, outcome.property_name or outcome.reason
    while (outcome := judged(hidden, Stage.OTHERS)).fate is not Fate.SURVIVED:
        hidden, by = hidden + 1, outcome.property_name or outcome.reason
        if hidden > SMALLEST:
            return ended(SEEN if outcome.fate is Fate.KILLED else UNSCALED, seen_by=by)
    widened = judged(hidden, Stage.WIDENED)
    shown = {"t": f"{4.0**-hidden:.2g}", "seen_by": by}
    if widened.fate is not Fate.SURVIVED:
        return ended(CAUGHT, **shown, caught_by=widened.property_name or widened.reason, case=widened.case)
    for larger in range(hidden - 1, -1, -1):
        if judged(larger, Stage.WIDENED).fate is Fate.KILLED:
            return ended(MISSED, **shown, widened_from=f"{4.0**-larger:.2g}")
    return ended(UNSEEN if hidden == 0 else MISSED, **shown)
