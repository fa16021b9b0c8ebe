"""The semi-CRF's property of long sequences: errors grow with the length no more than rounding explains."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from gradoracle.properties.semicrf.problems import LENGTHS, VJP, along, cut, of

from gradoracle.check.acceptance import not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.case import Case
from gradoracle.model.finding import LOCAL_SIGMA, Finding, Outcome
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import property

LONG = 10_000  # positions from which on a sequence is held against its beginning
BEGINNING = 1_000
MOST = 2.0  # times the rms error in sigma of the beginning


def _long(case: Case, kernel: Kernel) -> str | None:
    positions = case.dims["T"]
    return None if positions >= LONG else f"T = {positions} is not long: expected at least {LONG}"


@property(needs=(VJP,), applies=_long, rank=3)
def errors_in_sigma_do_not_grow_with_the_length(evidence: Evidence) -> Iterator[Finding]:
    """The rms error in sigma of a long sequence's gradients is at most twice that of its first 1 000 positions.

    The scatter of the rms over the first positions, as their probes show, is allowed for.
    Holds because: sigma is what rounding explains at that length, be it the rounding of what is returned (the same at
    any T), sums of independent roundings (the root of T) or alpha and beta that drift apart (T).
    Catches: norms of alpha or beta in float32, log Z or scores clamped at some size, a checkpoint that loses a little
    each time, positions in float32.
    Cannot catch: errors that are as large in short sequences; vjp_matches_the_oracle does.
    """
    longest = int(evidence.sample.inputs[LENGTHS].max())
    beginning = evidence.variant("the beginning", lambda s: cut(s, positions=BEGINNING))
    for name in map(of, along(evidence.sample)):
        shown = f"{name}, rms in sigma"
        if not evidence.continuous:
            yield not_checked(shown, "inputs that repeat values have no sigma")
            continue
        if longest < LONG:
            yield not_checked(shown, f"the longest sequence has {longest} positions, expected at least {LONG}")
            continue
        (here, _), (first, scatter) = _mean_square(evidence, name), _mean_square(beginning, name)
        if here is None or first is None:
            yield not_checked(shown, "no element has a budget beyond underflow")
            continue
        size, limit = math.sqrt(here), MOST * math.sqrt(first + LOCAL_SIGMA * scatter)
        holds = size <= limit
        message = f"{size:.2f} sigma over the whole length, {math.sqrt(first):.2f} over the first {BEGINNING} positions"
        outcome = Outcome.HOLDS if holds else Outcome.VIOLATED
        yield Finding(shown, outcome, "pooled", size / limit, message="" if holds else message)


def _mean_square(evidence: Evidence, name: str) -> tuple[float | None, float]:
    """The mean of (error / sigma)^2 over the elements of one gradient, and what such means scatter by."""
    allowance, truth = evidence.allowance(VJP, name), evidence.truths(VJP)[name]
    signed = truth.error(evidence.tensors(VJP)[name])
    own = (allowance.sigma > 0) & torch.isfinite(truth.value)
    if allowance.floor is not None:
        own &= allowance.sigma > 2 * allowance.floor
    count = int(own.sum())
    if count < 2:
        return None, 0.0
    sigma = allowance.sigma[own]
    nulls = (allowance.errors[:, own] / sigma).square().mean(1)
    scatter = float(nulls.std()) if len(nulls) > 1 else 0.0
    square = float((signed[own] / sigma).square().mean())
    return (square if math.isfinite(square) else math.inf), max(scatter, math.sqrt(2.0 / count))


LENGTH = (errors_in_sigma_do_not_grow_with_the_length,)
