"""Spread: the rules bias and pooled, on one tensor and pooled over cases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradoracle.model.finding import LOCAL_SIGMA, Finding, Outcome, Pool

WIDEST_SLOPE = 0.01  # a bias is judged where the slope is known to one percent


def spread(found: Finding, signed: Tensor, truth: Tensor, own: Tensor, sigma: Tensor, errors: Tensor) -> Finding:
    """Bias and pooled on one tensor: a slope against the truth, and a spread below the local limit.

    Args:
        found: the finding of the other rules; kept, with its pool, where these hold too.
        signed: ``kernel - truth``, float64.
        truth: float64.
        own: bool, the elements that are compared and whose budget is more than the underflow floor.
        sigma: one standard deviation, per element.
        errors: [R, *shape], the signed errors of the probes.
    """
    if int(own.sum()) < 2:
        return found
    if bool(own.all()):  # a view serves where a mask would copy
        sigma, e, t = (x.reshape(-1) for x in (sigma, signed, truth))
        errors = errors.reshape(len(errors), own.numel())
    else:
        sigma, e, t, errors = sigma[own], signed[own], truth[own], errors[:, own]
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
            )
    nulls = [s / pool.count for s in pool.null_squares]
    spread = _spread_rule(found.tensor, pool.squares / pool.count, nulls, pool.count, pool.shared)
    if spread.outcome is Outcome.VIOLATED:
        return replace(found, outcome=spread.outcome, rule=spread.rule, error=spread.error, message=spread.message)
    return found


def pooled(pools: Mapping[str, Pool]) -> list[Finding]:
    """The bias and spread of tensors over many cases: both rules on sums; one Finding a name and rule.

    Args:
        pools: by the tensor's name, what its findings hold, added up.
    """
    out = []
    for name, pool in pools.items():
        found = []
        if pool.slope_bottom > 0 and pool.null_slope_tops:
            found.append(_bias(name, pool.slope_top, pool.slope_bottom, pool.null_slope_tops))
        spreads = [square / pool.count for square in pool.null_squares]
        found.append(_spread_rule(name, pool.squares / pool.count, spreads, pool.count, max(pool.shared, pool.count)))
        out += [replace(each, among=pool.among, derivative=pool.derivative) for each in found]
    return out


def typical(finding: Finding) -> bool:
    """Whether a finding that holds is typical of its probes: its mean square and slope are of their size.

    Selecting such findings cannot make them break either rule when pooled over cases: the mean square of each is at
    most what is explained, and slopes cut at two deviations scatter no more than 1.15 times what is allowed.
    """
    pool = finding.pool
    if pool is None or not pool.null_squares:
        return True
    mean = sum(pool.null_squares) / len(pool.null_squares)
    if pool.squares > max(float(pool.count), mean):
        return False
    return abs(pool.slope_top) <= 2.0 * pool.slope_bottom * _deviation(pool.slope_bottom, pool.null_slope_tops)


def _bias(name: str, top: float, bottom: float, nulls: Sequence[float]) -> Finding:
    """Bias: the slope of the error on the truth against the slopes that the probes show."""
    slope, deviation = top / bottom, _deviation(bottom, nulls)
    limit = LOCAL_SIGMA * deviation
    if deviation > WIDEST_SLOPE:
        return Finding(name, Outcome.NOT_CHECKED, "bias", message="the slope is not known to one percent")
    ratio = abs(slope) / limit
    if ratio <= 1:
        return Finding(name, Outcome.HOLDS, "bias", ratio)
    message = f"the error is {slope:+.2e} of the truth throughout; rounding explains {limit:.1e}"
    return Finding(name, Outcome.VIOLATED, "bias", ratio, message=message, pattern="every element")


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
    """Pooled: the mean square of e/sigma, compared with that of the probes and the scatter of both.

    The mean over ``count`` dependent squares scatters like one over ``count^2 / shared`` independent ones.
    """
    mean = sum(nulls) / len(nulls) if nulls else 1.0
    scatter = math.sqrt(sum((n - mean) ** 2 for n in nulls) / max(len(nulls) - 1, 1)) if len(nulls) > 1 else 0.0
    limit = max(1.0, mean) + LOCAL_SIGMA * max(scatter, math.sqrt(2.0 * shared) / count)
    ratio = mean_square / limit
    if ratio <= 1:
        return Finding(name, Outcome.HOLDS, "pooled", ratio)
    rms, explained = math.sqrt(mean_square), math.sqrt(limit)
    message = f"the rms error is {rms:.2f} sigma over {count} elements; rounding explains {explained:.2f}"
    return Finding(name, Outcome.VIOLATED, "pooled", ratio, message=message)
