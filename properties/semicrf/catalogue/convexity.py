"""Properties of the semi-CRF's convexity: log Z is the lse of scores that are linear in all inputs jointly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial

import torch
from gradoracle.properties.agreement import double, larger
from gradoracle.properties.applicability import small_enough
from gradoracle.properties.semicrf.problems import FORWARD, HVP, VJP, drawn, of
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.finding import Finding
from gradoracle.model.formats import FORMATS
from gradoracle.model.property import property


@property(needs=(HVP,), applies=small_enough, one_in=5, rank=2)
def the_hessian_is_not_negative(evidence: Evidence) -> Iterator[Finding]:
    """Where no cotangent is negative, t^T H t >= 0 for a tangent t of all inputs together, or of cum_scores alone.

    Holds because: a path's score is linear in cum_scores, transition, duration_bias and projections together, and the
    lse of linear functions is convex: t^T H t is a sum of variances.
    Catches: a wrong sign of the second derivative of the marginals, tangents of marginals that are not centred, a cross
    term between two inputs that is left out or counted twice.
    Cannot catch: errors that leave it positive; hvp_matches_the_oracle does.
    """
    if drawn(evidence.case, "along which", 3):
        variant = evidence.variant("no negative cotangents", _signless)
        yield _not_negative(variant, "along all inputs")
    else:
        alone = evidence.variant("along cum_scores, no negative cotangents", lambda s: _along_cum(_signless(s)))
        yield _not_negative(alone, "along cum_scores")


def _signless(sample: Sample) -> Sample:
    return sample.with_cotangents(log_z=sample.cotangents["log_z"].abs())


def _along_cum(sample: Sample) -> Sample:
    still = {name: torch.zeros_like(t) for name, t in sample.tangents.items() if name != "cum_scores"}
    return sample.with_tangents(**still)


def _not_negative(variant: Evidence, label: str) -> Finding:
    """Judge <t, Ht> against the nearest number that is not negative."""
    tangents = [double(tangent) for tangent in variant.sample.tangents.values()]
    names = [f"hvp.{name}" for name in variant.sample.tangents]
    count = len(names)

    def products(*tensors: Tensor) -> list[Tensor]:
        return [t * h for h, t in zip(tensors[:count], tensors[count:], strict=False)]

    true = [double(truth.value) for truth in (variant.truths(HVP)[name] for name in names)]
    if not any(bool((product != 0).any()) for product in products(*true, *tangents)):
        return not_checked(f"t^T H t {label}", "log Z has no curvature along these tangents")
    got = products(*(double(variant.tensors(HVP)[name]) for name in names), *tangents)
    nearest = _total(got).clamp_min(0.0).nan_to_num()
    return variant.relate(
        f"negative part of t^T H t {label}",
        lambda *tensors: _total(products(*tensors)) - tensors[-1],
        [(variant, HVP, name) for name in names],
        scale=lambda *tensors: _total([p.abs() for p in products(*tensors)]),
        constants=[*tangents, nearest],
    )


def _total(terms: list[Tensor]) -> Tensor:
    return torch.stack([term.sum() for term in terms]).sum()


@property(needs=(FORWARD,), one_in=5, rank=3)
def log_z_in_the_middle_is_at_most_the_mean(evidence: Evidence) -> Iterator[Finding]:
    """Halfway between two points log Z is at most the mean of its values there, sequence by sequence.

    The points are x, x + d and x + 2d, on a grid on which all are representable exactly. A value below the mean passes
    at once; one above it is compared with rounding.
    Holds because: log Z is convex in all inputs together.
    Catches: a log Z that is negated, clamped from above, or falls where scores are large; a cap of the scores.
    Cannot catch: another convex function, such as the best path's score; forward_matches_the_oracle does.
    """
    line = _line(evidence.sample, evidence.case.dtype)
    reason = _nothing_moves(evidence.sample, line)
    if line is None or reason is not None:
        yield not_checked("log_z", reason or "")
        return
    parts = [evidence.variant(f"on a line, {at}", partial(_at, line=line, at=at)) for at in (0, 1, 2)]
    low, middle, high = (double(part.tensors(FORWARD)["log_z"]) for part in parts)
    below = middle - (low + high) / 2
    if bool((below < 0).all()):
        yield exactly("log Z in the middle - the mean", False, "", elements=below.numel())
        return
    nearest = below.clamp_max(0.0).nan_to_num(posinf=0.0, neginf=0.0)
    yield evidence.relate(
        "log Z in the middle - the mean",
        lambda low, middle, high, nearest: middle - (low + high) / 2 - nearest,
        [(part, FORWARD, "log_z") for part in parts],
        scale=lambda low, middle, high, nearest: larger(low, high),
        constants=[nearest],
    )


@property(needs=(FORWARD, VJP), applies=small_enough, one_in=6, rank=3)
def log_z_lies_above_its_tangents(evidence: Evidence) -> Iterator[Finding]:
    """With F = <g, log Z> and no g negative, F(x + d) - F(x) lies between <dF(x), d> and <dF(x + d), d>.

    Holds because: F is convex in all inputs together, and a convex function lies above each of its tangents.
    Catches: gradients that are too large or too small along a direction, or of a function other than log Z; a term
    that the forward has and the backward lacks.
    Cannot catch: errors smaller than the curvature between the points; vjp_matches_the_oracle does.
    """
    line = _line(evidence.sample, evidence.case.dtype, step=2.0 ** (-FORMATS[evidence.case.dtype].bits // 4))
    reason = _nothing_moves(evidence.sample, line)
    if line is None or reason is not None:
        yield not_checked("log_z", reason or "")
        return
    here = evidence.variant("on a line, 0, no negative cotangents", lambda s: _at(_signless(s), line=line, at=0))
    there = evidence.variant("on a line, 1, no negative cotangents", lambda s: _at(_signless(s), line=line, at=1))
    g = double(here.sample.cotangents["log_z"])
    names = list(line)
    directions = [double(step) for _, step in line.values()]

    def terms(a: Tensor, b: Tensor, g: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        return g * (b - a), _total([d * step for d, step in zip(rest, rest[len(names) :], strict=False)])

    def size(*tensors: Tensor) -> Tensor:
        *own, _ = _ordered(tensors, len(names))
        rise, slope = terms(*own)
        return torch.maximum(rise.abs().sum(), slope.abs())

    zero = torch.zeros((), dtype=torch.float64)
    for label, side, sign in (("rise - <dF(x), d>", here, 1.0), ("<dF(x + d), d> - rise", there, -1.0)):

        def gap(*tensors: Tensor, sign: float = sign) -> Tensor:
            *own, nearest = _ordered(tensors, len(names))
            rise, slope = terms(*own)
            return sign * (rise.sum() - slope) - nearest

        parts = [(here, FORWARD, "log_z"), (there, FORWARD, "log_z"), *((side, VJP, of(name)) for name in names)]
        got = [double(e.tensors(derivative)[own]) for e, derivative, own in parts]
        got[:2] = (t.nan_to_num(posinf=0.0, neginf=0.0) for t in got[:2])  # no path: F does not move
        nearest = gap(*got, g, *directions, zero).clamp_min(0.0).nan_to_num()

        yield evidence.relate(label, gap, parts, scale=size, constants=[g, *directions, nearest])


def _ordered(tensors: tuple[Tensor, ...], count: int) -> tuple[Tensor, ...]:
    """(log Z, log Z, g, gradients, directions, nearest) of (log Z, log Z, gradients, g, directions, nearest)."""
    return (*tensors[:2], tensors[2 + count], *tensors[2 : 2 + count], *tensors[3 + count :])


def _line(sample: Sample, dtype: str, step: float = 1.0) -> Mapping[str, tuple[Tensor, Tensor]] | None:
    """(x, d) of every float input such that x, x + d and x + 2d are held exactly; None where they would overflow.

    d is ``step`` times the tangent, cut to a quarter of the largest number of its input or 1; both are on a grid. A
    tangent below a quarter of that is first made as large, where the grid might hold 0, or rounding all that moves.
    """
    found = {}
    for name, tangent in sample.tangents.items():
        x, along = double(sample.inputs[name]), double(tangent)
        finite = x.isfinite()
        largest = float(torch.where(finite, x.abs(), 0.0).max()) if x.numel() else 0.0
        reach = max(largest / 4, 1.0)
        if 4 * (largest + 2 * reach) > FORMATS[dtype].largest:
            return None
        unit = 2.0 ** (math.frexp(largest + 2 * reach)[1] - FORMATS[dtype].bits)
        grid = max(unit, FORMATS[dtype].smallest_subnormal)
        longest = float(torch.where(finite, along.abs(), 0.0).max()) if x.numel() else 0.0
        if 0.0 < longest < reach / 4:
            along = along / longest * reach
        move = torch.where(finite, step * along.clamp(-reach, reach), 0.0)
        own = sample.inputs[name]
        found[name] = tuple(((t / grid).round() * grid).to(own.device) for t in (x, move))
    return found  # type: ignore[return-value]


def _nothing_moves(sample: Sample, line: Mapping[str, tuple[Tensor, Tensor]] | None) -> str | None:
    """Why points on a line compare nothing, if they do."""
    if line is None:
        return "the points would overflow"
    if not any(bool((move != 0).any()) for _, move in line.values()):
        return "all tangents are 0, so all points coincide"
    return None if bool((sample.inputs["lengths"] > 0).any()) else "every length is 0, so no score is read"


def _at(sample: Sample, *, line: Mapping[str, tuple[Tensor, Tensor]], at: int) -> Sample:
    """The sample at x + at d."""
    moved = {name: (x + at * step).to(sample.inputs[name].dtype) for name, (x, step) in line.items()}
    return sample.with_inputs(**moved)


CONVEXITY = (
    the_hessian_is_not_negative,
    log_z_in_the_middle_is_at_most_the_mean,
    log_z_lies_above_its_tangents,
)
