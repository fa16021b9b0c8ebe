"""Diagnosis: the likely cause of a fault, from all that its violated laws show and from what else holds.

Each sign is read by a rule of its own; the most specific rule that has something to say decides, in the order of
``_RULES``. Where none has, the diagnosis is empty: no cause is better than a guess.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gradoracle.check.diagnosis.error_location import EVERYWHERE
from gradoracle.check.diagnosis.likeness import is_one_factor
from gradoracle.check.diagnosis.symptom import MATCHES, Seen, Symptom
from gradoracle.model.case import Case
from gradoracle.model.causes import CAUSES
from gradoracle.model.fault import UNKNOWN, Diagnosis
from gradoracle.model.finding import Finding

# What a violation of these laws says by itself, whatever the tensors look like.
OF_LAWS: Mapping[str, str] = {
    "every_access_stays_inside_its_tensor": "access",
    "programs_of_a_launch_do_not_race": "access",
    "a_barrier_stands_between_a_store_and_a_load": "access",
    "a_barrier_stands_between_two_stores": "access",
    "writes_stay_inside_their_tensors": "access",
    "inputs_and_cotangents_are_unmodified": "access",
    "nothing_is_loaded_before_it_is_written": "stale",
    "no_memory_is_left_unwritten": "stale",
    "saved_tensors_are_unmodified": "stale",
    "runs_are_bit_identical": "stale",
    "first_call_equals_second": "stale",
    "backward_twice_with_retain_graph_gives_the_same": "stale",
    "trials_of_an_autotuner_leave_nothing_behind": "stale",
    "any_layout_of_inputs_is_right_or_refused": "layout",
    "any_layout_of_cotangents_is_right_or_refused": "layout",
    "tail_and_padding_invariance": "tail",
    "steps_between_places_may_leave_the_range_of_exp": "range",
}
_OUTSIDE = ("every_access_stays_inside_its_tensor", "writes_stay_inside_their_tensors")
_FAR = "offsets_past_2_31_give_the_same"
_LAYOUTS = ("any_layout_of_inputs_is_right_or_refused", "any_layout_of_cotangents_is_right_or_refused")
_UNORDERED = (
    "programs_of_a_launch_do_not_race",
    "a_barrier_stands_between_a_store_and_a_load",
    "a_barrier_stands_between_two_stores",
)
_UNWRITTEN = "no_memory_is_left_unwritten"
_STALE = ("runs_are_bit_identical", "first_call_equals_second", "backward_twice_with_retain_graph_gives_the_same")
_BY_ONE = 2  # accesses just outside, of all programs and launches, up to which an address is off by one
_LOW = ("float16", "bfloat16")
_WIDE_RECIPES = ("extreme", "outlier", "wide", "powers", "largemean")
_LARGE_PARAMETER = 8.0  # of a recipe, from which on products and exponentials are large
_FEWEST = 8  # elements of a tensor from which on its values are believed
_SPECIFIC = ("sign", "ratio", "transpose", "shift", "term", "sum", "slice", "dtype")  # causes that values name


def diagnose(symptoms: Sequence[Symptom]) -> Diagnosis:
    """The likely cause of what is broken among the symptoms of one kernel; empty where nothing can be said."""
    broken = [symptom for symptom in symptoms if symptom.broken]
    wrong = tuple(symptom for symptom in broken if symptom.findings)
    crashed = tuple(symptom for symptom in broken if not symptom.findings)
    seen = Seen(wrong, crashed, tuple(symptom for symptom in symptoms if not symptom.broken))
    if not broken:
        return UNKNOWN
    for rule in _RULES:
        found = rule(seen)
        if found is not None:
            cause, evidence = found
            return Diagnosis(cause, CAUSES[cause], evidence)
    return UNKNOWN


Found = tuple[str, str] | None  # a cause and the evidence for it


def _unordered(seen: Seen) -> Found:
    """An argument that is written to, a race, a load that no barrier orders: facts, whatever comes of them.

    A store beyond the end of its rows meets the next rows' too.
    """
    for symptom in seen.of("inputs_and_cotangents_are_unmodified"):
        return "access", _message(symptom)
    for symptom in seen.of(*_UNORDERED):
        if outside := [s for s in seen.of(*_OUTSIDE) if s.law == _OUTSIDE[1] or ", writes " in _message(s)]:
            return "tail", _message(outside[0])
        return "access", _message(symptom)
    return None


def _far(seen: Seen) -> Found:
    """Only tensors that reach past 2^31 elements are wrong."""
    if {symptom.law for symptom in seen.broken} != {_FAR}:
        return None
    return "offset", f"{_FAR} alone: the same tensors close together give what is right"


def _unwritten(seen: Seen) -> Found:
    """What nothing wrote: the end of a dim, where a bound stops too early; its first index; else a store is missing."""
    for symptom in seen.of(_UNWRITTEN):
        places = {f.place for f in (*symptom.findings, *symptom.further) if f.place != EVERYWHERE}
        what = f"{symptom.findings[0].tensor} is never written at {next(iter(sorted(places)), '')}"
        if places and all(part.endswith(" = 0") for place in places for part in place.split(", ")):
            return "shift", what
        if places and all(place.startswith("only ") and "," not in place and _is_tail(place) for place in places):
            return "tail", what
        return "stale", _message(symptom)
    return None


def _malformed(seen: Seen) -> Found:
    """A gradient that is None, or a tensor of another dtype: whatever law asks for it is broken."""
    for finding in seen.wrong:
        if finding.malformed and " is None" in finding.message:
            return "term", finding.message
        if finding.malformed and " has dtype " in finding.message:
            return "dtype", finding.message
    return None


def _strides(seen: Seen) -> Found:
    """Wrong from index 1 of a dim on, time and again or with accesses outside: 0 times any stride is right."""
    placed = [finding for finding in seen.wrong if "only " in finding.place]
    often = len(placed) > 1 or (placed and seen.of(*_OUTSIDE))
    if often and all(" >= 1 (of" in finding.place for finding in placed):
        shown = max(placed, key=lambda finding: finding.elements)
        return "layout", f"{shown.tensor}: {shown.pattern}, while index 0 is right"
    return None


def _outside(seen: Seen) -> Found:
    """Accesses outside: by a mask that is missing where every value is right all the same, or by one element."""
    for symptom in seen.of(*_OUTSIDE):
        alone = not seen.tensors
        by_one = any(_by_one(f.message) for s in seen.of(_OUTSIDE[0]) for f in s.findings)
        cause = "tail" if alone else "shift" if by_one and symptom.law == _OUTSIDE[0] else "access"
        return cause, _message(symptom)
    for symptom in seen.crashed:
        if any(mark in symptom.note for mark in ("illegal memory access", "segmentation fault", "misaligned address")):
            return "access", symptom.note
    return None


def _by_one(message: str) -> bool:
    """Whether a message of the record tells of the one element before or behind a tensor, and of little more."""
    told = re.findall(
        r"\[([+-]\d+) elements from its first\] of shape \[([\d, ]*)\].*?(?:\((\d+) elements so\)|;|$)", message
    )
    beside = [int(index) in (-1, math.prod(map(int, shape.split(",")))) for index, shape, _ in told if shape]
    return bool(told) and all(beside) and all(int(count or 1) <= _BY_ONE for *_, count in told)


def _earlier(seen: Seen) -> Found:
    """Runs on variants of a sample go wrong, of which the first run is right."""
    laws = {symptom.law for symptom in seen.broken}
    right = any(symptom.law.endswith(MATCHES) for symptom in seen.held)
    if right and len(laws) > 2 and not any(law.endswith(MATCHES) or law in OF_LAWS for law in laws - set(_LAYOUTS)):
        return "stale", "laws that run the kernel again are violated, and the first run is right"
    return None


def _unready(seen: Seen) -> Found:
    """Memory that is read before it is written, or written to while it is kept."""
    for symptom in seen.of("nothing_is_loaded_before_it_is_written", "saved_tensors_are_unmodified"):
        return "stale", _message(symptom)
    return None


def _unsteady(seen: Seen) -> Found:
    """Results that differ from run to run."""
    for symptom in seen.of(*_STALE):
        return "stale", f"{symptom.law} is violated: {_message(symptom)}"
    again = [symptom for symptom in (*seen.broken, *seen.crashed) if "differs from run to run" in symptom.note]
    return ("stale", again[0].note) if again else None


def _layouts(seen: Seen) -> Found:
    """Only cases with other layouts show it: the layout laws alone are broken, or no smaller case came without one."""
    laws = {symptom.law for symptom in seen.broken}
    if laws and laws <= set(_LAYOUTS):
        return "layout", f"{' and '.join(sorted(laws))} alone: contiguous tensors give what is right"
    own = [symptom for symptom in seen.broken if symptom.law.endswith(MATCHES)]
    if own and all(symptom.shrunk and _layouts_of(symptom.case) for symptom in own):
        return "layout", f"no case without {_layouts_of(own[0].case)[0]} shows it"
    return None


def _laid_out(seen: Seen) -> Found:
    """Every case with another layout shows it that is known, and none without."""
    cases = [(s, bool(_layouts_of(s.case))) for s in (*seen.broken, *seen.held) if s.law.endswith(MATCHES) and s.case]
    if len({laid_out for _, laid_out in cases}) == 2 and all(s.broken == laid_out for s, laid_out in cases):
        return "layout", "cases with a tensor that is not contiguous show it, and no others"
    return None


def _layouts_of(case: Case | None) -> list[str]:
    draws = case.draws.items() if case is not None else ()
    return [f"{name} {draw.layout}" for name, draw in draws if draw.layout != "contiguous"]


def _presets(seen: Seen) -> Found:
    """Another contract explains what most tensors show, and it looks like rounding."""
    if _is_no_rounding(seen):
        return None
    explained = [symptom for symptom in seen.broken if symptom.note.startswith("holds under")]
    if seen.tensors and 2 * sum(s.note.startswith("holds under") for s, _ in seen.tensors) >= len(seen.tensors):
        return "dtype", f"{explained[0].law} {explained[0].note}"
    return None


def _is_no_rounding(seen: Seen) -> bool:
    """Whether the finest dtype shows one factor, or wrong tails beside values that are right."""
    finest = seen.finest
    causes = [formula.cause for formula in finest.formulas]
    if 2 * causes.count("ratio") > len(causes):
        return True
    told = [finding for finding in finest.wrong if finding.elements >= _FEWEST]
    ratios = [finding.ratio for finding in told if finding.cause == "ratio" and finding.ratio is not None]
    if 2 * len(ratios) > len(told) and is_one_factor(ratios):
        return True
    placed = [finding.place for finding in told if "only " in finding.place]
    return len(placed) > 1 and all(" >= " in place for place in placed)


def _range(seen: Seen) -> Found:
    """NaN or infinities on cases of large values, most ordinary ones being right."""
    if not seen.lost:
        return None
    cases = {str(symptom.case): symptom.case for symptom in seen.broken if symptom.case is not None}
    large = [_large(case) for case in cases.values()]
    named = [name for name in large if name]
    if named and 2 * len(named) > len(large):
        return "range", f"values are lost {'only' if all(large) else 'mostly'} on cases such as {named[0]}"
    return None


def _large(case: Case | None) -> str:
    """A tensor of the case that is drawn from large values, as the case line names it; "" where there is none."""
    for name, draw in case.draws.items() if case is not None else ():
        recipe, _, parameter = draw.recipe.partition(":")
        if recipe in _WIDE_RECIPES or (parameter and _number(parameter) >= _LARGE_PARAMETER):
            return f"{name}~{draw.recipe}"
    return ""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _formulas(seen: Seen) -> Found:
    """Another formula gives what the kernel gave."""
    no_rounding = _is_no_rounding(seen)
    known = [formula for formula in seen.finest.formulas if not (no_rounding and formula.cause == "dtype")]
    if not known:
        return None
    cause, _ = Counter(formula.cause for formula in known).most_common(1)[0]
    plain = _values(seen)
    if plain is not None and (plain[0] == cause or (cause, plain[0]) in (("ratio", "sum"), ("ratio", "sign"))):
        return plain  # the same, told of the tensors themselves
    return cause, next(formula.words for formula in known if formula.cause == cause)


def _values(seen: Seen) -> Found:
    """What the wrong values have to do with the true ones, on most of the cases that are large enough to tell."""
    told = [finding for finding in seen.wrong if finding.elements >= _FEWEST] or seen.wrong
    votes = Counter(finding.cause for finding in told)
    cause = max((c for c in votes if c), key=lambda c: (votes[c], -_SPECIFIC.index(c)), default="")
    if not cause or 2 * votes[cause] < len(told):
        return None
    otherwise = any(finding.cause not in ("", cause) for finding in told)
    if cause == "dtype" and (otherwise or 2 * votes[cause] == len(told)):  # a rounding makes few wrong in another way
        return None
    shown = max((f for f in told if f.cause == cause), key=lambda finding: finding.elements)
    if cause == "ratio" and (count := _count(seen, shown)):
        return "sum", f"{shown.tensor}: {shown.pattern}, which is {count}"
    return cause, f"{shown.tensor}: {shown.pattern or shown.message}"


def _count(seen: Seen, finding: Finding) -> str:
    """The size, or quotient of sizes, that a ratio is on every case that shows it; "" where there is none.

    A factor of 2 or 1/2 alone is counted twice or halved whatever the sizes are.
    """
    shown: list[tuple[float, Mapping[str, int]]] = []
    for symptom in seen.broken:
        for each in symptom.findings:
            if each.tensor == finding.tensor and each.ratio is not None and symptom.case is not None:
                shown.append((each.ratio, symptom.case.dims))
    counts = [set(_counts(ratio, dims)) for ratio, dims in shown if not _is_close(abs(ratio), 1.0)]
    if not counts or all(_is_close(r, 2.0) or _is_close(r, 0.5) for r, _ in shown):
        return ""
    return min(set.intersection(*counts), key=len, default="")


def _counts(ratio: float, dims: Mapping[str, int]) -> Iterator[str]:
    for name, size in dims.items():
        if size > 1 and (_is_close(ratio, size) or _is_close(ratio, 1 / size)):
            yield f"{name}" if ratio > 1 else f"1/{name}"
        for other, less in dims.items():
            if less < size and size % less == 0 and less > 1 and (_is_close(ratio, size / less)):
                yield f"{name}/{other}"


def _is_close(one: float, other: float) -> bool:
    return abs(one / other - 1) < 5e-3


def _rounding(seen: Seen) -> Found:
    """Errors that show in low dtypes alone: a rounding more than the contract has."""
    laws = {symptom.law for symptom in seen.broken}
    high = {s.law for s in seen.held if s.dtype not in _LOW}
    broken = {s.dtype for s in seen.broken}
    if broken and broken <= set(_LOW) and laws <= high and not seen.lost:
        return "dtype", f"violated in {' and '.join(sorted(broken))} alone"
    return None


def _places(seen: Seen) -> Found:
    """Where the wrong elements lie, on most of the cases on which they lie in one place."""
    placed = [finding for finding in seen.wrong if "only " in finding.place]
    tails = [finding for finding in placed if _is_tail(finding.place)]
    if not placed:
        return None
    chosen = tails if 2 * len(tails) >= len(placed) else [f for f in placed if f not in tails]
    shown = max(chosen, key=lambda finding: finding.elements)
    return "tail" if chosen is tails else "slice", f"{shown.tensor}: {shown.pattern}"


def _is_tail(place: str) -> bool:
    """Whether wrong elements reach to the end of a dim from somewhere within it."""
    return " >= " in place or "(the last)" in place


def _laws(seen: Seen) -> Found:
    """What a law means that is broken while all that match the oracle hold."""
    causes = {OF_LAWS.get(symptom.law, "") for symptom in seen.broken}
    if len(causes) == 1 and (cause := causes.pop()):
        return cause, f"{seen.broken[0].law} alone"
    return None


def _message(symptom: Symptom) -> str:
    said: list[Any] = [finding.message for finding in symptom.findings if finding.message]
    return str(said[0]) if said else symptom.law


_RULES: tuple[Callable[[Seen], Found], ...] = (
    _malformed,
    _unordered,
    _far,
    _unwritten,
    _layouts,
    _presets,
    _formulas,
    _strides,
    _outside,
    _range,
    _unready,
    _unsteady,
    _earlier,
    _values,
    _rounding,
    _laid_out,
    _places,
    _laws,
)
