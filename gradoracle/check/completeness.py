"""Completeness: what a run should have checked and did not, as sentences; such a run is not green."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence

from gradoracle.check.aggregate import Key, undecided
from gradoracle.model.reason import Reason
from gradoracle.model.sums import Sums
from gradoracle.model.verdict import Status, Verdict


def shortfall(
    verdicts: Iterable[Verdict],
    sums: Mapping[Key, Sums],
    *,
    decisive: Collection[str],
    require: Iterable[str],
    undefined: Sequence[str],
    cases: int,
    sizes: str,
) -> list[str]:
    """One sentence for each thing that should have been checked and was not.

    Args:
        verdicts: of the run.
        sums: of these verdicts.
        decisive: names of the properties each of whose tensors must be decided on some case of each dtype.
        require: globs of properties that must have been checked.
        undefined: what is wrong with the definition, one sentence for each affected case.
        cases: the number of cases run.
        sizes: advice for a definition that raises on some sizes.
    """
    found = undecided(sums, decisive)
    unmet = [each.sentence for each in found]
    if undefined and not {each.reason for each in found} & set(undefined):  # otherwise it is reported already
        outside = any(each.kinds.get(undefined[0]) is Reason.OUTSIDE for each in sums.values())
        hint = f"; {sizes}" if outside else ""
        unjudged = f"{len(undefined)} of {cases} cases could not be judged by every property"
        unmet.insert(0, f"{unjudged}: {undefined[0]}{hint}")
    held = {verdict.law for verdict in verdicts if verdict.status in (Status.HOLDS, Status.VIOLATED)}
    for glob in require:
        if not fnmatch.filter(held, glob):
            unmet.append(f"--require {glob}: no property that matches was checked")
    return unmet
