"""The rules of the verdict on one tensor (DESIGN 2): exact, local, worst case, bias, pooled; and sensitivity.

All of them compare ``kernel - truth`` with what a Budget says that rounding explains. None has a constant to tune:
``LOCAL_SIGMA`` is the one level of significance, the same for a single element, a slope and a pooled square.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradoracle.check.diagnosis.error_location import place, read
from gradoracle.model.error_map import ErrorMap, errormap
from gradoracle.model.finding import Finding, Outcome, Pool, Worst
from gradoracle.model.reason import Reason

LOCAL_SIGMA = 8.0
TOO_WIDE = "budget too wide"
WIDEST_SENSITIVITY = 0.1
WIDEST_SLOPE = 0.01  # a bias is judged where the slope is known to one percent


@dataclass(frozen=True)
class Allowance:
    """What rounding explains of one compared tensor: float64 tensors of its shape.

    Attributes:
        sigma: one standard deviation, per element.
        errors: [R, *shape], the signed errors of the probes.
        worst: every rounding at its worst, where it was asked for.
        floor: the part of sigma that is the underflow floor.
        overflow: True where a declared intermediate overflows in a correct kernel; None where none does.
        radius: how far the truth itself may be off, proven (certified) or from its own budget (float64).
        undecided: True where the truth could not be decided; None where it is decided everywhere.
    """

    sigma: Tensor
    errors: Tensor
    worst: Tensor | None = None
    floor: Tensor | None = None
    overflow: Tensor | None = None
    radius: Tensor | None = None
    undecided: Tensor | None = None


def judge(
    name: str,
    got: Tensor,
    truth: Tensor,
    allowance: Allowance,
    *,
    continuous: bool,
    error: Tensor | None = None,
    scale: Tensor | None = None,
    largest: float | None = None,
    axes: Sequence[str] = (),
    others: Callable[[], Mapping[str, Tensor]] = dict,
) -> Finding:
    """Judge one tensor by all rules; the first that is broken, in the order exact, local, bias, pooled, is the finding.

    Args:
        name: the tensor's name in the law.
        got: what the kernel gave, any float dtype.
        truth: float64, the same shape.
        allowance: what rounding explains.
        continuous: whether the inputs come from a continuous random recipe (rule 1a) or repeat values (rule 1b).
        error: ``got - truth`` where the caller knows it better than float64 subtraction does.
        scale: what sensitivity is measured against; default ``|truth|``. For a law whose two sides cancel, their size.
        largest: the largest finite value of the stored dtype, by default that of ``got``; truths beyond it may be
            infinite there.
        axes: names of the dims, for the pattern of wrong elements.
        others: gives further true tensors by name, with which wrong ones are compared; called where there are any.
    """
    stored = got.dtype
    if largest is None:
        largest = torch.finfo(got.dtype).max
    got = got.detach().to("cpu", torch.float64)
    signed = got - truth if error is None else error
    compared, exact = _exact(name, got, truth, allowance, largest, axes)
    if exact is not None:
        return exact
    limit = _limit(allowance, continuous)
    if not compared.any():
        return Finding(
            name, Outcome.NOT_CHECKED, "exact", message="no element could be compared", undecided=got.numel()
        )
    size = signed.abs()
    ratio = torch.where(compared & (size > 0), size / limit, torch.zeros_like(size))
    in_sigma = torch.where(compared & (size > 0), size / allowance.sigma, torch.zeros_like(size))
    sensitivity = _sensitivity(limit, truth if scale is None else scale, compared)
    flat = int(ratio.argmax())
    found = Finding(
        name,
        Outcome.HOLDS,
        "local" if continuous else "worst case",
        error=float(ratio.flatten()[flat]),
        error_in_sigma=float(in_sigma.max()),
        sensitivity=sensitivity,
        worst=_worst(flat, got, truth, in_sigma),
        elements=int(compared.sum()),
        undecided=int(got.numel() - compared.sum()),
    )
    if found.error > 1:
        wrong = compared & (ratio > 1)
        return replace(
            found,
            outcome=Outcome.VIOLATED,
            **_seen(wrong, got, truth, axes, others(), stored),
            message=f"{int(wrong.sum())} of {found.elements} elements are further out than rounding explains",
            map=_map(in_sigma, compared, axes, got, truth),
        )
    if continuous:
        found = _spread(found, signed, truth, allowance, compared)
        if found.outcome is Outcome.VIOLATED:
            return replace(found, map=_map(in_sigma, compared, axes, got, truth))
    if sensitivity is None:
        return replace(found, sensitivity=None, message="the truth is 0 throughout")
    if sensitivity > WIDEST_SENSITIVITY:
        reason = f"{TOO_WIDE}: median budget / |truth| is {sensitivity:.2g}, at most {WIDEST_SENSITIVITY} decides"
        return replace(found, outcome=Outcome.NOT_CHECKED, message=reason, why=Reason.BUDGET)
    return found


def exactly(
    name: str,
    wrong: Tensor | bool,
    message: str,
    *,
    elements: int = 1,
    lost: bool = False,
    axes: Sequence[str] = (),
) -> Finding:
    """A fact that needs no budget: violated where any of ``wrong`` is true.

    Args:
        name: the tensor's name in the law.
        wrong: bool, the elements that break it.
        message: what is wrong with them.
        elements: how many were compared.
        lost: whether they are wrong for being NaN or infinite where the truth is finite.
        axes: names of the dims of ``wrong``.
    """
    mask = wrong if isinstance(wrong, Tensor) else torch.tensor(wrong)
    if bool(mask.any()):
        index = tuple(int(i) for i in mask.nonzero()[0]) if mask.dim() else ()
        worst = Worst(index, math.nan, math.nan, math.inf)
        where, out = place(mask, axes), math.inf
        found = Finding(name, Outcome.VIOLATED, "exact", out, out, None, message, worst, where, mask.numel())
        return replace(found, place=where, lost=lost, map=_facts(mask, axes))
    return Finding(name, Outcome.HOLDS, "exact", elements=max(elements, mask.numel()))


def not_checked(name: str, reason: str) -> Finding:
    """A tensor that was not checked, and why."""
    return Finding(name, Outcome.NOT_CHECKED, "exact", message=reason)


def pooled(pools: Mapping[str, Pool]) -> list[Finding]:
    """The bias and spread of tensors over many cases: rules 2 and 3 on sums; one Finding a name and rule.

    Args:
        pools: by the tensor's name, what its findings hold, added up.
    """
    out = []
    for name, pool in pools.items():
        if pool.slope_bottom > 0 and pool.null_slope_tops:
            out.append(_bias(name, pool.slope_top, pool.slope_bottom, pool.null_slope_tops))
        spreads = [square / pool.count for square in pool.null_squares]
        out.append(_spread_rule(name, pool.squares / pool.count, spreads, pool.count, max(pool.shared, pool.count)))
    return out


def typical(finding: Finding) -> bool:
    """Whether a finding that holds is also what the probes show: a mean square and a slope of their own size.

    Pooled over cases, such findings cannot break rules 2 and 3 by having been picked: the mean square of each is at
    most what is explained, and slopes cut at two deviations scatter no more than 1.15 times what they are allowed.
    """
    pool = finding.pool
    if pool is None or not pool.null_squares:
        return True
    mean = sum(pool.null_squares) / len(pool.null_squares)
    if pool.squares > max(float(pool.count), mean):
        return False
    return abs(pool.slope_top) <= 2.0 * pool.slope_bottom * _deviation(pool.slope_bottom, pool.null_slope_tops)


def _exact(
    name: str, got: Tensor, truth: Tensor, allowance: Allowance, largest: float, axes: Sequence[str]
) -> tuple[Tensor, Finding | None]:
    """Which elements can be compared, and the exact facts that are broken: non-finite values, zeros that must be 0."""
    representable = truth.isfinite() & (truth.abs() <= largest)
    excused = torch.zeros_like(representable)
    if allowance.overflow is not None:
        excused |= allowance.overflow
    if allowance.undecided is not None:
        excused |= allowance.undecided
    lost = representable & ~got.isfinite() & ~excused
    if lost.any():
        what = "is not finite where the truth is, and no declared intermediate overflows"
        return lost, _violation(name, lost, got, truth, what, axes, lost=True)
    infinite = truth.isinf() & (got != truth) & ~excused
    if infinite.any():
        return infinite, _violation(name, infinite, got, truth, "differs from an infinite truth", axes)
    missing = truth.isnan() & ~got.isnan() & ~excused
    if missing.any():
        return missing, _violation(name, missing, got, truth, "is a number where the truth is NaN", axes)
    compared = representable & got.isfinite()
    if allowance.undecided is not None:
        compared &= ~allowance.undecided
    zero = compared & (truth == 0) & (allowance.sigma == 0) & (got != 0)
    if allowance.radius is not None:
        zero &= allowance.radius == 0
    if zero.any():
        return zero, _violation(name, zero, got, truth, "must be exactly 0", axes)
    return compared, None


def _violation(
    name: str, wrong: Tensor, got: Tensor, truth: Tensor, what: str, axes: Sequence[str], lost: bool = False
) -> Finding:
    """A broken exact fact at the elements ``wrong``."""
    index = tuple(int(i) for i in wrong.nonzero()[0])
    worst = Worst(index, float(got[index]), float(truth[index]), math.inf)
    message = f"{int(wrong.sum())} of {wrong.numel()} elements: the kernel's value {what}"
    seen, out, count = _seen(wrong, got, truth, axes), math.inf, wrong.numel()
    seen["map"] = _facts(wrong, axes)
    return Finding(name, Outcome.VIOLATED, "exact", out, out, None, message, worst, elements=count, lost=lost, **seen)


def _facts(wrong: Tensor, axes: Sequence[str]) -> ErrorMap | None:
    """The map of facts, which have no sigma."""
    return _map(torch.where(wrong, math.inf, 0.0), None, axes)


def _map(
    in_sigma: Tensor,
    compared: Tensor | None,
    axes: Sequence[str],
    got: Tensor | None = None,
    truth: Tensor | None = None,
) -> ErrorMap | None:
    """A map of errors; none where it cannot be made: whatever happens to a picture, the verdict stands."""
    try:
        return errormap(in_sigma, compared, axes, got, truth)
    except Exception:
        return None


def _seen(
    wrong: Tensor,
    got: Tensor,
    truth: Tensor,
    axes: Sequence[str],
    others: Mapping[str, Tensor] | None = None,
    stored: torch.dtype | None = None,
) -> dict[str, Any]:
    """The fields of a Finding that say where and how elements are wrong."""
    found = read(wrong, got, truth, axes, others, stored)
    like = found.likeness
    return {"pattern": str(found), "place": found.place, "cause": like.cause, "ratio": like.ratio}


def _limit(allowance: Allowance, continuous: bool) -> Tensor:
    """The largest error that is within budget, per element, the truth's own radius included."""
    if continuous or allowance.worst is None:
        limit = LOCAL_SIGMA * allowance.sigma
    else:
        limit = torch.maximum(
            allowance.worst, LOCAL_SIGMA * (allowance.floor if allowance.floor is not None else 0 * allowance.sigma)
        )
    return limit if allowance.radius is None else limit + allowance.radius


def _sensitivity(limit: Tensor, scale: Tensor, compared: Tensor) -> float | None:
    """Median of budget / |truth| over the elements with a truth; None where the truth is 0 throughout."""
    scale = scale.abs().expand_as(limit)
    has = compared & (scale > 0) & scale.isfinite()
    return float((limit[has] / scale[has]).median()) if has.any() else None


def _worst(flat: int, got: Tensor, truth: Tensor, in_sigma: Tensor) -> Worst:
    """The worst element with its values."""
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), got.shape)) if got.dim() else ()
    return Worst(index, float(got[index]), float(truth[index]), float(in_sigma[index]))


def _spread(found: Finding, signed: Tensor, truth: Tensor, allowance: Allowance, compared: Tensor) -> Finding:
    """Rules 2 and 3 on one tensor: a slope against the truth, and a spread below the local limit."""
    own = compared & (allowance.sigma > 0)
    if allowance.floor is not None:  # elements whose budget is the underflow floor say nothing about relative errors
        own &= allowance.sigma > 2 * allowance.floor
    if int(own.sum()) < 2:
        return found
    if bool(own.all()):  # a view serves where a mask would copy
        sigma, e, t = (x.reshape(-1) for x in (allowance.sigma, signed, truth))
        errors = allowance.errors.reshape(len(allowance.errors), own.numel())
    else:
        sigma, e, t, errors = allowance.sigma[own], signed[own], truth[own], allowance.errors[:, own]
    null = errors / sigma  # [R, n]
    weight = t / sigma
    pool = Pool(
        int(own.sum()),
        float((e / sigma).square().sum()),
        tuple(torch.linalg.vecdot(null, null).tolist()),
        float((weight * e / sigma).sum()),
        float(weight.square().sum()),
        tuple((null @ weight).tolist()),
        _shared(null),
    )
    found = replace(found, pool=pool)
    if pool.slope_bottom > 0:
        bias = _bias(found.tensor, pool.slope_top, pool.slope_bottom, pool.null_slope_tops)
        if bias.outcome is Outcome.VIOLATED:
            return replace(
                found,
                outcome=bias.outcome,
                rule=bias.rule,
                error=bias.error,
                message=bias.message,
                pattern=bias.pattern,
                cause=_leaning(e, t, sigma, pool.slope_top / pool.slope_bottom),
            )
    nulls = [s / pool.count for s in pool.null_squares]
    spread = _spread_rule(found.tensor, pool.squares / pool.count, nulls, pool.count, pool.shared)
    if spread.outcome is Outcome.VIOLATED:
        return replace(
            found, outcome=spread.outcome, rule=spread.rule, error=spread.error, message=spread.message, cause="dtype"
        )
    return found


def _leaning(error: Tensor, truth: Tensor, sigma: Tensor, slope: float) -> str:
    """The cause that a slope points at: a factor where it is most of the error, else a rounding that leans one way."""
    part = (slope * truth / sigma).square().sum()
    return "ratio" if float(((error - slope * truth) / sigma).square().sum()) < 0.25 * float(part) else "dtype"


def _bias(name: str, top: float, bottom: float, nulls: Sequence[float]) -> Finding:
    """Rule 2: the slope of the error on the truth against the slopes that the probes show."""
    slope, deviation = top / bottom, _deviation(bottom, nulls)
    limit = LOCAL_SIGMA * deviation
    if deviation > WIDEST_SLOPE:
        return Finding(name, Outcome.NOT_CHECKED, "bias", message="the slope is not known to one percent")
    ratio = abs(slope) / limit
    if ratio <= 1:
        return Finding(name, Outcome.HOLDS, "bias", ratio)
    message = f"is {slope:+.2e} of the truth too large throughout; rounding explains {limit:.1e}"
    shown = f"{1 + slope:.6g}" if abs(slope) > 1e-4 else f"1 {'+' if slope > 0 else '-'} {abs(slope):.2e}"
    return Finding(name, Outcome.VIOLATED, "bias", ratio, message=message, pattern=f"all elements, ratio {shown}")


def _deviation(bottom: float, nulls: Sequence[float]) -> float:
    """What rounding explains of a slope: the rms of the probes' slopes, never less than that of independent errors."""
    if bottom <= 0:
        return 0.0
    rms = math.hypot(*(n / bottom for n in nulls)) / math.sqrt(len(nulls)) if nulls else 0.0  # squares may overflow
    return max(rms, bottom**-0.5)


def _shared(null: Tensor) -> float:
    """The sum of squared correlations over all pairs of elements, by the probes' errors [R, n] in any units.

    Two probes are independent draws, so the square of their scalar product is that sum on average, each element
    in units of what the probes show of it. At least n, which it is where no two elements err together.
    """
    probes, count = null.shape
    if probes < 2:
        return float(count)
    size = null.square().mean(0).sqrt()
    erring = size > 0
    own = null / size if bool(erring.all()) else null[:, erring] / size[erring]
    products = own @ own.T
    apart = products.square().sum() - products.diagonal().square().sum()
    return max(float(count), float(apart) / (probes * (probes - 1)) + count - int(erring.sum()))


def _spread_rule(name: str, mean_square: float, nulls: Sequence[float], count: int, shared: float) -> Finding:
    """Rule 3: the mean square of e/sigma against what the probes show, their scatter and that of as many free draws.

    A mean over ``count`` squares that are not independent scatters as one over ``count^2 / shared`` that are.
    """
    mean = sum(nulls) / len(nulls) if nulls else 1.0
    scatter = math.sqrt(sum((n - mean) ** 2 for n in nulls) / max(len(nulls) - 1, 1)) if len(nulls) > 1 else 0.0
    limit = max(1.0, mean) + LOCAL_SIGMA * max(scatter, math.sqrt(2.0 * shared) / count)
    ratio = mean_square / limit
    if ratio <= 1:
        return Finding(name, Outcome.HOLDS, "pooled", ratio)
    rms, explained = math.sqrt(mean_square), math.sqrt(limit)
    message = f"the rms error is {rms:.2f} sigma over {count} elements; rounding explains {explained:.2f}"
    return Finding(name, Outcome.VIOLATED, "pooled", ratio, message=message, cause="dtype")
