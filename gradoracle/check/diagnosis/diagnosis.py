"""Diagnosis: the likely cause of a fault, where what its violated laws show points at one that is rarely another.

Only causes are named whose hit rate on planted faults is 90 % or better (docs/background/mutation.md); of all others
nothing is said: no cause is better than a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from gradoracle.check.diagnosis.likeness import is_one_factor
from gradoracle.check.diagnosis.symptom import Seen, Symptom
from gradoracle.model.causes import CAUSES
from gradoracle.model.fault import UNKNOWN, Diagnosis
from gradoracle.model.formats import DTYPES, FORMATS
from gradoracle.model.property import PropertyKind
from gradoracle.model.region import Extent

NAMED = ("dtype", "ratio", "sign", "offset")  # causes with a hit rate of 90 % or better
_FACTS = (PropertyKind.MEMORY, PropertyKind.REPETITION, PropertyKind.LAYOUT)  # these say more than any value does
_LOW = frozenset(name for name in DTYPES if FORMATS[name].is_few)
_FEWEST = 8  # elements of a tensor from which on its values are believed
_SPECIFIC = ("sign", "ratio", "transpose", "shift", "term", "sum", "slice", "dtype")  # causes that values point at
Found = tuple[str, str] | None  # a cause and the evidence for it


def diagnose(symptoms: Sequence[Symptom]) -> Diagnosis:
    """The likely cause of what is broken among the symptoms of one kernel; empty where nothing can be said."""
    broken = [symptom for symptom in symptoms if symptom.broken]
    if not broken:
        return UNKNOWN
    if any(found.cause == "layout" for symptom in broken for found in symptom.findings):
        return UNKNOWN  # the property that found it says so
    declared = {symptom.cause for symptom in broken}
    if len(declared) == 1 and (cause := declared.pop()):
        return _named(cause, f"only {broken[0].law} is violated")
    wrong = [symptom for symptom in broken if symptom.findings]
    if any(each.kind in _FACTS or any(f.malformed for f in each.findings) for each in wrong) or not wrong:
        return UNKNOWN
    seen = Seen(tuple(wrong), tuple(symptom for symptom in symptoms if not symptom.broken))
    for rule in _RULES:
        if (found := rule(seen)) is not None:
            return _named(*found)
    return UNKNOWN


def _named(cause: str, evidence: str) -> Diagnosis:
    return Diagnosis(cause, CAUSES[cause], evidence) if cause in NAMED else UNKNOWN


def _presets(seen: Seen) -> Found:
    """Another contract explains what most tensors show, and it looks like rounding."""
    if _is_no_rounding(seen):
        return None
    explained = [symptom for symptom in seen.broken if symptom.preset]
    if seen.tensors and 2 * sum(bool(symptom.preset) for symptom, _ in seen.tensors) >= len(seen.tensors):
        return "dtype", f"{explained[0].law} holds under {explained[0].preset}"
    return None


def _is_no_rounding(seen: Seen) -> bool:
    """Whether the finest dtype shows one factor, or wrong tails beside values that are right."""
    finest = seen.finest
    causes = [formula.cause for formula in finest.formulas]
    if 2 * causes.count("ratio") > len(causes):
        return True
    telling = [finding for finding in finest.wrong if finding.elements >= _FEWEST]
    ratios = [finding.ratio for finding in telling if finding.cause == "ratio" and finding.ratio is not None]
    if 2 * len(ratios) > len(telling) and is_one_factor(ratios):
        return True
    regions = [
        finding.region for finding in telling if any(s.extent is not Extent.SCATTERED for s in finding.region.spans)
    ]
    return len(regions) > 1 and all(region.has_a_tail for region in regions)


def _formulas(seen: Seen) -> Found:
    """Another formula gives what the kernel gave."""
    no_rounding = _is_no_rounding(seen)
    known = [formula for formula in seen.finest.formulas if not (no_rounding and formula.cause == "dtype")]
    if not known:
        return None
    cause, _ = Counter(formula.cause for formula in known).most_common(1)[0]
    plain = _values(seen)
    if plain is not None and (plain[0] == cause or (cause, plain[0]) == ("ratio", "sign")):
        return plain  # the same cause, seen in the tensors themselves
    return cause, next(formula.words for formula in known if formula.cause == cause)


def _values(seen: Seen) -> Found:
    """What the wrong values have to do with the true ones, on most of the cases that are large enough to tell."""
    telling = [finding for finding in seen.wrong if finding.elements >= _FEWEST] or seen.wrong
    votes = Counter(finding.cause for finding in telling)
    cause = max((c for c in votes if c), key=lambda c: (votes[c], -_SPECIFIC.index(c)), default="")
    if not cause or 2 * votes[cause] < len(telling):
        return None
    otherwise = any(finding.cause not in ("", cause) for finding in telling)
    if cause == "dtype" and (otherwise or 2 * votes[cause] == len(telling)):  # rounding makes few wrong otherwise
        return None
    shown = max((f for f in telling if f.cause == cause), key=lambda finding: finding.elements)
    return cause, f"{shown.tensor}: {shown.pattern or shown.message}"


def _rounding(seen: Seen) -> Found:
    """Errors that show in low dtypes alone: a rounding more than the contract has."""
    laws = {symptom.law for symptom in seen.broken}
    high = {s.law for s in seen.held if s.dtype not in _LOW}
    broken = {s.dtype for s in seen.broken}
    if broken and broken <= set(_LOW) and laws <= high and not seen.lost:
        return "dtype", f"violated only in {' and '.join(sorted(broken))}"
    return None


_RULES: tuple[Callable[[Seen], Found], ...] = (_presets, _formulas, _values, _rounding)
