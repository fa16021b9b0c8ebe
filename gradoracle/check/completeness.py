"""Shortfall: what a run should have checked and did not, as sentences; such a run is not green."""

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
    """One sentence for each thing that is wanting.

    Args:
        verdicts: of the run.
        sums: of these verdicts.
        decisive: names of the laws whose every tensor must be decided on some case of each dtype.
        require: globs of laws that must have been checked.
        undefined: what is wrong with the definition, one sentence of each case on which something is.
        cases: how many were run.
        sizes: which sizes the definition is meant for, where it raises on some.
    """
    found = undecided(sums, decisive)
    unmet = [each.sentence for each in found]
    if undefined and not {each.reason for each in found} & set(undefined):  # else it is said already
        outside = any(each.kinds.get(undefined[0]) is Reason.OUTSIDE for each in sums.values())
        hint = f"; {sizes}" if outside else ""
        unmet.insert(0, f"{len(undefined)} of {cases} cases could not be judged by every law: {undefined[0]}{hint}")
    held = {verdict.law for verdict in verdicts if verdict.status in (Status.HOLDS, Status.VIOLATED)}
    for glob in require:
        if not fnmatch.filter(held, glob):
            unmet.append(f"--require {glob}: no law that matches was checked")
    return unmet
