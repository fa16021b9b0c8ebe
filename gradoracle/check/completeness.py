"""Completeness: what a run should have checked and did not, as sentences; such a run is not green."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradoracle.check.tally import Results
from gradoracle.model.fault import VerdictKey
from gradoracle.model.finding import Outcome
from gradoracle.model.property import DIRECT
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status, Verdict

# what is malformed is reported by another property; what is random as declared is judged by the laws of randomness
_OPTIONAL = (Reason.NO_DERIVATIVE, Reason.DETACHED, Reason.MALFORMED, Reason.RANDOM)


def shortfall(
    verdicts: Iterable[Verdict],
    results: Mapping[VerdictKey, Results],
    *,
    decisive: Collection[str],
    require: Iterable[str],
    undefined: Sequence[str],
    cases: int,
    sizes: str,
) -> list[str]:
    """One sentence for each thing that should have been checked and was not.

    Args:
        verdicts: the verdicts of the run.
        results: those of each verdict.
        decisive: names of the properties each of whose tensors must be decided on some case of each dtype.
        require: globs of properties that must have been checked.
        undefined: the mistakes of the definition, one sentence for each affected case.
        cases: the number of cases run.
        sizes: advice for a definition that raises on some sizes.
    """
    known = list(verdicts)
    found = undecided(results, decisive)
    unmet = [*(each.sentence for each in found), *_left_open(known, results)]
    if undefined and not {each.reason for each in found} & set(undefined):  # otherwise it is reported already
        outside = any(each.kinds.get(undefined[0]) is Reason.OUTSIDE for each in results.values())
        hint = f"; {sizes}" if outside else ""
        unjudged = f"{len(undefined)} of {cases} cases could not be judged by every property"
        unmet.insert(0, f"{unjudged}: {undefined[0]}{hint}")
    held = {verdict.property_name for verdict in known if verdict.status in (Status.HOLDS, Status.VIOLATED)}
    for glob in require:
        if not fnmatch.filter(held, glob):
            unmet.append(f"--require {glob}: no property that matches was checked")
    return unmet


@dataclass(frozen=True)
class Undecided:
    """What no case of a run decided, as a sentence, and the reason, which is a part of it."""

    sentence: str
    reason: str


def undecided(results: Mapping[VerdictKey, Results], decisive: Iterable[str]) -> list[Undecided]:
    """What no case decided, one entry a reason; such a run is not green.

    Args:
        results: those of each verdict.
        decisive: names of the properties each of whose tensors must be decided on some case of each dtype.
    """
    own = {key: each for key, each in results.items() if key.property_name in set(decisive)}
    properties: dict[tuple[str, str], dict[str, list[str]]] = {}  # (kernel, reason) -> dtype -> properties
    found = []
    taken = {  # once a decisive property was judged, a backward that always refuses is not merely unsupported
        (key.kernel, key.dtype) for key, each in own.items() if each.statuses.keys() & {Status.HOLDS, Status.VIOLATED}
    }
    supporting = {kernel for kernel, _ in taken}  # a kernel may refuse dtypes, but not all of them
    for key, each in own.items():
        property_name, kernel, dtype = key.property_name, key.kernel, key.dtype
        if set(each.statuses) == {Status.NOT_CHECKED} and not each.left:
            reason = next(iter(each.reasons))
            if each.kinds.get(reason) not in _OPTIONAL:
                properties.setdefault((kernel, reason), {}).setdefault(dtype, []).append(property_name)
        refused = each.of(Status.REFUSED)
        is_expected = (kernel, dtype) in taken or kernel not in supporting
        if refused and set(each.statuses) <= {Status.REFUSED, Status.NOT_CHECKED} and is_expected:
            reason = f"refused: {refused[0].result.reason}"
            properties.setdefault((kernel, reason), {}).setdefault(dtype, []).append(property_name)
        for tensor, why in each.undecided.items():
            sentence = f"{tensor} of {property_name} could not be decided on any {dtype} case of {kernel}: {why}"
            found.append(Undecided(sentence, why))
    return [*_undecided(properties), *found]


def _undecided(properties: Mapping[tuple[str, str], Mapping[str, list[str]]]) -> Iterator[Undecided]:
    """One entry for each kernel and reason; ``properties``: (kernel, reason) -> dtype -> undecided properties."""
    for (kernel, reason), by_dtype in properties.items():
        names = list(dict.fromkeys(name for own in by_dtype.values() for name in own))
        who = names[0] if len(names) == 1 else f"{len(names)} properties ({', '.join(names)})"
        yield Undecided(f"{who} could not be decided on any {' or '.join(by_dtype)} case of {kernel}: {reason}", reason)


def _left_open(verdicts: Sequence[Verdict], results: Mapping[VerdictKey, Results]) -> Iterator[str]:
    """What violates a property, may be wrong or only imprecise, and was not decided by another property.

    One sentence for each kernel, dtype and reason.
    """
    groups: dict[tuple[str, str, str], tuple[dict[str, None], dict[str, None]]] = {}  # -> tensors, properties
    for verdict in verdicts:
        if not verdict.is_open:
            continue
        if tensors := _violated(verdict) - _decided(verdicts, results, verdict.kernel, verdict.dtype):
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


def _decided(verdicts: Iterable[Verdict], results: Mapping[VerdictKey, Results], kernel: str, dtype: str) -> set[str]:
    """The tensors of a kernel in a dtype that some property has compared with the truth, and decided."""
    return {
        tensor
        for each in verdicts
        if (each.kernel, each.dtype) == (kernel, dtype) and each.kind in DIRECT
        if each.status in (Status.HOLDS, Status.VIOLATED)
        for tensor in results[each.key].decided
    }
