"""Completeness: what a run should have checked and did not, as sentences; such a run is not green."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from gradoracle.check.aggregate import Key, undecided
from gradoracle.model.finding import Outcome
from gradoracle.model.property import DIRECT
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
    known = list(verdicts)
    found = undecided(sums, decisive)
    unmet = [*(each.sentence for each in found), *_left_open(known, sums)]
    if undefined and not {each.reason for each in found} & set(undefined):  # otherwise it is reported already
        outside = any(each.kinds.get(undefined[0]) is Reason.OUTSIDE for each in sums.values())
        hint = f"; {sizes}" if outside else ""
        unjudged = f"{len(undefined)} of {cases} cases could not be judged by every property"
        unmet.insert(0, f"{unjudged}: {undefined[0]}{hint}")
    held = {verdict.property_name for verdict in known if verdict.status in (Status.HOLDS, Status.VIOLATED)}
    for glob in require:
        if not fnmatch.filter(held, glob):
            unmet.append(f"--require {glob}: no property that matches was checked")
    return unmet


def _left_open(verdicts: Sequence[Verdict], sums: Mapping[Key, Sums]) -> Iterator[str]:
    """What violates a property, may be wrong or only imprecise, and was not decided by another property.

    One sentence for each kernel, dtype and reason.
    """
    groups: dict[tuple[str, str, str], tuple[dict[str, None], dict[str, None]]] = {}  # -> tensors, properties
    for verdict in verdicts:
        if not verdict.is_open:
            continue
        if tensors := _violated(verdict) - _decided(verdicts, sums, verdict.kernel, verdict.dtype):
            key = verdict.kernel, verdict.dtype, verdict.severity_note
            named, properties = groups.setdefault(key, ({}, {}))
            named |= dict.fromkeys(sorted(tensors))
            properties[verdict.property_name] = None
    for (kernel, dtype, why), (named, properties) in groups.items():
        who = (
            next(iter(properties))
            if len(properties) == 1
            else f"{len(properties)} properties ({', '.join(properties)})"
        )
        reason = f": {why}" if why else ""
        yield (
            f"{', '.join(named)} of {kernel} in {dtype}, which violates {who}, may be wrong or only imprecise{reason}"
        )


def _violated(verdict: Verdict) -> set[str]:
    """The kernel's tensors that the violations of a verdict are about."""
    shown = verdict.counterexample
    found = () if shown is None else (*shown.findings, *shown.first_findings, *shown.further)
    return {name for each in found if each.outcome is Outcome.VIOLATED for name in each.named}


def _decided(verdicts: Iterable[Verdict], sums: Mapping[Key, Sums], kernel: str, dtype: str) -> set[str]:
    """The tensors of a kernel in a dtype that some property has compared with the truth, and decided."""
    return {
        tensor
        for each in verdicts
        if (each.kernel, each.dtype) == (kernel, dtype) and each.kind in DIRECT
        if each.status in (Status.HOLDS, Status.VIOLATED)
        for tensor in sums[each.property_name, each.kernel, each.dtype].decided
    }
