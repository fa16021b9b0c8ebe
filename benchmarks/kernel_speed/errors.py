"""Errors: how far the result of an entry is from the truth of its row, for the timed inputs and for its stress."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from gradoracle.model.errors import named

from .rows import Line
from .stopwatch import Stopwatch

TIMED, STRESS = "timed", "stress"  # inputs
FACTS = ("date", "card", "torch", "triton", "commit")
Truths = dict[str, Sequence[Any]]  # inputs -> float64 tensors of a row, made once for all its entries


@dataclass(frozen=True)
class Error:
    """The errors of the tensor that is worst, in each of two measures.

    Attributes:
        rms: root mean square of the differences, divided by that of the truth.
        largest: largest difference, divided by the largest magnitude of the truth.
        of: the names of the two tensors; one where it is the same.
    """

    rms: float
    largest: float
    of: str


def error(found: Any, truth: Any) -> tuple[float, float]:
    """(rms, largest) of one tensor; infinite where it is not finite.

    Raises:
        ValueError: the truth is not finite, or has another shape.
    """
    import torch

    if not torch.isfinite(truth).all():
        raise ValueError("the truth is not finite")
    if found.shape != truth.shape:
        raise ValueError(f"a tensor {list(found.shape)}; expected {list(truth.shape)}")
    exact = truth.to(found.device)
    if not torch.isfinite(found).all():
        return math.inf, math.inf
    off = found.double() - exact
    return (
        _ratio(off.square().mean().sqrt().item(), exact.square().mean().sqrt().item()),
        _ratio(off.abs().max().item(), exact.abs().max().item()),
    )


def _ratio(off: float, size: float) -> float:
    return off / size if size > 0 else math.inf if off > 0 else 0.0


def worst(names: Sequence[str], found: Sequence[Any], truth: Sequence[Any]) -> Error:
    """Of the tensors of a result."""
    each = {name: error(x, exact) for name, x, exact in zip(names, found, truth, strict=True)}
    by_rms, by_largest = (max(each, key=lambda name: each[name][measure]) for measure in (0, 1))
    return Error(each[by_rms][0], each[by_largest][1], ", ".join(dict.fromkeys((by_rms, by_largest))))


def errors(row: Any, who: str, inputs: str, truths: Truths, watch: Stopwatch) -> Error:
    """Of one call of an entry.

    Args:
        row: a ``works.Row`` with a truth.
        who: the entry.
        inputs: TIMED or STRESS.
        truths: what was made for other entries of the row, to which its truth is added.
        watch: gives back memory.

    Raises:
        Exception: whatever the entry or the truth raises.
    """
    truth = row.truth
    with truth.stressed() if inputs == STRESS else nullcontext():
        if inputs not in truths:
            truths[inputs] = truth.exact()
            watch.release()
        parts = truth.of(who, row.entries[who]()())
    watch.release()  # what was not cut out
    return worst(truth.names, parts, truths[inputs])


def compared(row: Any, who: str, line: Line, truths: Truths, watch: Stopwatch, facts: Mapping[str, Any]) -> Line:
    """A row of the CSV with the errors of its entry; where some are missing it says why."""
    found: dict[str, Error] = {}
    missing = []
    for inputs in (TIMED, STRESS) if row.truth.stress else (TIMED,):
        try:
            found[inputs] = errors(row, who, inputs, truths, watch)
        except Exception as failure:
            why = named(failure)
            if why not in missing:  # said of the timed inputs already
                missing.append(why if inputs == TIMED else f"{why} ({row.truth.stress})")
        watch.release()  # what an entry that failed has left, too
    return lined(replace(line, sharp=row.truth.stress), found, "; ".join(missing), facts)


def lined(line: Line, found: Mapping[str, Error], missing: str, facts: Mapping[str, Any]) -> Line:
    """A row of the CSV with errors by inputs; they replace those that it had."""
    (rms, largest, of), (sharp_rms, sharp_largest, sharp_of) = (
        (None, None, "") if each is None else (each.rms, each.largest, each.of)
        for each in (found.get(TIMED), found.get(STRESS))
    )
    return replace(
        line,
        error_rms=rms,
        error_largest=largest,
        error_of=of,
        sharp_rms=sharp_rms,
        sharp_largest=sharp_largest,
        sharp_of=sharp_of,
        errors_missing=missing,
        errors_on=on(facts),
    )


def said(line: Line) -> str:
    """The errors of a row as a line of the terminal."""
    words = []
    if line.error_rms is not None:
        words.append(f"{line.error_rms:.3g} / {line.error_largest:.3g} ({line.error_of})")
    if line.sharp_rms is not None:
        words.append(f"{line.sharp} {line.sharp_rms:.3g} / {line.sharp_largest:.3g} ({line.sharp_of})")
    return f"{line.work} | {line.entry}: {'; '.join(words)}" + (line.errors_missing and f" {line.errors_missing[:120]}")


def on(facts: Mapping[str, Any]) -> str:
    """What a run that compared ran on, which may be another one than that which timed."""
    return "; ".join(f"{name} {facts[name]}" for name in FACTS if facts.get(name))
