"""Semi-CRF as a kernel rounds it: forward and backward in the log domain, every result rounded; for probes of budgets.

The algorithm of budgets.py in the arithmetic of arithmetic.py, in float64 with each result rounded to p bits.

With tangents it runs in forward mode: beside each number goes its tangent, and values and tangents are rounded. The
tangent of a log-sum-exp is the sum of share times tangent; each share of the sum of weights, each product and each
partial sum is rounded relative to its own size. A tangent has no norm: those of alpha and beta grow as that of log Z
does, and at each position what is added to them loses bits of that size. All tangents share one factor, so a
parameter's tangent loses the same bits wherever the sum has that size, and log Z's drifts with T.

A product of the Hessian is the sum of g p d, d the derivative of log p. Correct kernels find it in ways that err
differently, and so do the probes: half of them from alpha' + segment' + beta' - log Z', half from the end, as what
differentiates a gradient does: what leads to a place has its share of that place's p' and p (x' - alpha'). Shares that
do not add up to 1 by the same rounding everywhere cancel in the first, and add up in the second. Kernels that find
log Z by another way than alpha (chunks that are composed, say) have its drift at the last place, where alpha' - log Z'
would be exactly 0: half of the probes from alpha and beta take log Z of beta at the first place. In these beta has
factors of its own: with alpha's it would lose the same bits of each parameter, and the drift between both would cancel.

Compiled by numba where it is installed. Axes as in scaled.py; a transition for all durations has J = 1. ``own`` and
``along`` are (cum_scores, duration_bias, proj_start, proj_end) of one sequence and their tangents; what is absent has
no rows. Names that end in ``_d`` are tangents; arrays of them have no rows, and numbers are 0, where there are none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gradoracle.properties.semicrf.readings.arithmetic import (
    INTERVAL,
    LOGS,
    POSTERIORS,
    SEEDS,
    TANGENTS,
    added,
    drawn,
    posterior,
    rounded,
    score,
    settle,
    summed,
)
from gradoracle.properties.semicrf.readings.recursion import Problem
from torch import Tensor

from gradoracle.model.machine_code import jitted
from gradoracle.oracle.rounding.probes import mixed

FROM_ALPHA, FROM_BETA, SHARED = "from alpha", "from beta", "shared"  # ways to a product: whose log Z, or shares
WAYS = (FROM_ALPHA, SHARED, FROM_BETA, SHARED)  # of successive probes with tangents
_ORDER = ("cum_scores", "duration_bias", "proj_start", "proj_end")


@dataclass(frozen=True)
class Rounded:
    """One probe in float64: log Z [B], its tangent [B], 0 without tangents, and what it gives by input.

    ``gradients`` are those of <cotangent, log Z>, or with tangents the products of its Hessian.
    """

    log_z: Tensor
    jvp: Tensor
    gradients: dict[str, Tensor]


@jitted
def into(
    t: int, c: int, own: Any, tr: Any, along: Any, tr_d: Any, dual: bool, by: Any, alpha: Any, alpha_d: Any, enter: Any,
    enter_d: Any, norm: Any, terms: Any, moved: Any,
) -> int:  # fmt: skip
    """The terms of alpha[t, c] and their tangents by duration, and by label where transitions are; how many."""
    (cum, dur, start, end), (cum_d, dur_d, start_d, end_d) = own, along
    count, here_d = 0, 0.0
    for k in range(min(len(dur), t)):
        s = t - k - 1
        apart = norm[s] - norm[t - 1]
        here = score(cum, dur, start, end, s, t, c, LOGS, by)
        if dual:
            here_d = score(cum_d, dur_d, start_d, end_d, s, t, c, TANGENTS, by)
        if len(tr) == 1:
            terms[count] = rounded(here + rounded(enter[s, c] + apart, LOGS, by), LOGS, by)
            if dual:
                moved[count] = added(here_d, enter_d[s, c], by)
            count += 1
            continue
        for b in range(len(tr[0])):
            before = rounded(alpha[s, b] + apart, LOGS, by)
            terms[count] = rounded(rounded(here + tr[k, b, c], LOGS, by) + before, LOGS, by)
            if dual:
                moved[count] = added(added(here_d, tr_d[k, b, c], by), alpha_d[s, b], by)
            count += 1
    return count


@jitted
def entering(
    t: int, c: int, tr: Any, tr_d: Any, dual: bool, by: Any, alpha: Any, alpha_d: Any, terms: Any, moved: Any
) -> None:
    """The terms of enter[t, c] and their tangents by label."""
    for b in range(len(tr[0])):
        terms[b] = rounded(alpha[t, b] + tr[0, b, c], LOGS, by)
        if dual:
            moved[b] = added(alpha_d[t, b], tr_d[0, b, c], by)


@jitted
def forward(
    length: int, own: Any, tr: Any, along: Any, tr_d: Any, dual: bool, library: Any, by: Any, alpha: Any, alpha_d: Any,
    enter: Any, enter_d: Any, norm: Any,
) -> tuple[float, float]:  # fmt: skip
    """alpha, enter [T+1 C] relative to norm [T+1], the largest alpha there, and their tangents.

    Returns log Z less the last norm, and its tangent.
    """
    labels, one = alpha.shape[1], len(tr) == 1
    terms, moved = np.empty((len(own[1]) + 1) * labels), np.empty((len(own[1]) + 1) * labels)
    for t in range(length + 1):
        for c in range(labels):
            if t > 0:
                count = into(t, c, own, tr, along, tr_d, dual, by, alpha, alpha_d, enter, enter_d, norm, terms, moved)
                alpha[t, c], tangent = summed(terms, moved, count, dual, library, by)
                if dual:
                    alpha_d[t, c] = tangent
        norm[t] = norm[t - 1] if t > 0 else 0.0
        if t > 0 and t % by[INTERVAL] == 0.0:
            norm[t] += settle(alpha[t], by)
        for c in range(labels if one else 0):
            entering(t, c, tr, tr_d, dual, by, alpha, alpha_d, terms, moved)
            enter[t, c], tangent = summed(terms, moved, labels, dual, library, by)
            if dual:
                enter_d[t, c] = tangent
    return summed(alpha[length].copy(), alpha_d[length] if dual else moved, labels, dual, library, by)


@jitted
def backward(
    length: int, own: Any, tr: Any, along: Any, tr_d: Any, dual: bool, library: Any, by: Any, beta: Any, beta_d: Any,
    leave: Any, leave_d: Any, norm: Any,
) -> None:  # fmt: skip
    """beta [T+1 C] relative to norm [T+1], the largest beta there, leave relative to the next, and their tangents."""
    (cum, dur, start, end), (cum_d, dur_d, start_d, end_d) = own, along
    labels, longest, one = beta.shape[1], len(dur), len(tr) == 1
    terms, moved = np.empty(max(longest, 1) * labels), np.empty(max(longest, 1) * labels)
    here, after = np.empty((longest, labels)), np.empty((longest, labels))  # a segment's score, and beta after it
    here_d = np.empty((longest, labels))
    for t in range(length, -1, -1):
        if t == length:
            beta[t], norm[t] = 0.0, 0.0
            if dual:
                beta_d[t] = 0.0
            continue
        reach = min(longest, length - t)
        for k in range(reach):
            for c in range(labels):
                here[k, c] = score(cum, dur, start, end, t, t + k + 1, c, LOGS, by)
                if dual:
                    here_d[k, c] = score(cum_d, dur_d, start_d, end_d, t, t + k + 1, c, TANGENTS, by)
                after[k, c] = rounded(beta[t + k + 1, c] + (norm[t + k + 1] - norm[t + 1]), LOGS, by)
        for c in range(labels if one else 0):
            for k in range(reach):
                terms[k] = rounded(here[k, c] + after[k, c], LOGS, by)
                if dual:
                    moved[k] = added(here_d[k, c], beta_d[t + k + 1, c], by)
            leave[t, c], tangent = summed(terms, moved, reach, dual, library, by)
            if dual:
                leave_d[t, c] = tangent
        for b in range(labels):
            count = 0
            for c in range(labels):
                for k in range(1 if one else reach):
                    if one:
                        terms[count] = rounded(tr[0, b, c] + leave[t, c], LOGS, by)
                        if dual:
                            moved[count] = added(tr_d[0, b, c], leave_d[t, c], by)
                    else:
                        terms[count] = rounded(rounded(here[k, c] + tr[k, b, c], LOGS, by) + after[k, c], LOGS, by)
                        if dual:
                            moved[count] = added(added(here_d[k, c], tr_d[k, b, c], by), beta_d[t + k + 1, c], by)
                    count += 1
            beta[t, b], tangent = summed(terms, moved, count, dual, library, by)
            if dual:
                beta_d[t, b] = tangent
        norm[t] = norm[t + 1] + (settle(beta[t], by) if (length - t) % by[INTERVAL] == 0.0 else 0.0)


@jitted
def mass(log: float, norm: float, tangent: float, z_d: float, dual: bool, library: Any, by: Any) -> float:
    """The probability p of what scores log + norm; where ``dual`` p d, with ``tangent`` that of the scores."""
    p = posterior(log, norm, library, by)
    if not dual or p == 0.0:
        return p
    return rounded(p * added(tangent, -z_d, by), TANGENTS, by)


@jitted
def masses(
    length: int, own: Any, tr: Any, along: Any, tr_d: Any, dual: bool, library: Any, by: Any, alpha: Any, alpha_d: Any,
    enter: Any, enter_d: Any, alpha_norm: Any, beta: Any, beta_d: Any, leave: Any, leave_d: Any, beta_norm: Any,
    z: float, z_d: float, begun: Any, ended: Any, by_table: Any, by_duration: Any,
) -> None:  # fmt: skip
    """begun, ended [T+1 C]; by_table [J C C] and by_duration [K C], added up exactly; as ``scaled.masses``.

    These are probabilities, or where ``dual`` what they move by.
    """
    (cum, dur, start, end), (cum_d, dur_d, start_d, end_d) = own, along
    labels, longest, one = alpha.shape[1], len(dur), len(tr) == 1
    kind = TANGENTS if dual else POSTERIORS
    both_d, here_d = 0.0, 0.0
    for t in range(length + 1):
        for c in range(labels):
            if t > 0:
                both = rounded(alpha[t, c] + beta[t, c], LOGS, by)
                if dual:
                    both_d = added(alpha_d[t, c], beta_d[t, c], by)
                ended[t, c] = mass(both, alpha_norm[t] + beta_norm[t] - z, both_d, z_d, dual, library, by)
            total = 0.0
            for k in range(1, min(longest, length - t) + 1):
                here = score(cum, dur, start, end, t, t + k, c, LOGS, by)
                if dual:
                    here_d = score(cum_d, dur_d, start_d, end_d, t, t + k, c, TANGENTS, by)
                norm = alpha_norm[t] + beta_norm[t + k] - z
                whole = 0.0
                for b in range(1 if one else labels):
                    if one:
                        both = rounded(here + enter[t, c], LOGS, by)
                    else:
                        both = rounded(rounded(here + tr[k - 1, b, c], LOGS, by) + alpha[t, b], LOGS, by)
                    both = rounded(both + beta[t + k, c], LOGS, by)
                    if dual:
                        both_d = here_d if one else added(here_d, tr_d[k - 1, b, c], by)
                        both_d = added(both_d, enter_d[t, c] if one else alpha_d[t, b], by)
                        both_d = added(both_d, beta_d[t + k, c], by)
                    part = mass(both, norm, both_d, z_d, dual, library, by)
                    if not one:
                        by_table[k - 1, b, c] += part
                    whole += part
                    total = rounded(total + part, kind, by)
                by_duration[k - 1, c] += whole
            begun[t, c] = total
            for b in range(labels if one and t < length else 0):
                both = rounded(rounded(alpha[t, b] + tr[0, b, c], LOGS, by) + leave[t, c], LOGS, by)
                if dual:
                    both_d = added(added(alpha_d[t, b], tr_d[0, b, c], by), leave_d[t, c], by)
                by_table[0, b, c] += mass(both, alpha_norm[t] + beta_norm[t + 1] - z, both_d, z_d, dual, library, by)


@jitted
def part(share: float, moved: float, p: float, p_d: float, tangent: float, by: Any) -> tuple[float, float]:
    """(p, p') of what has a share of a place's: share p' + p (moved - tangent), every product rounded."""
    own = rounded(share * p, POSTERIORS, by)
    apart = added(rounded(own * moved, TANGENTS, by), -rounded(own * tangent, TANGENTS, by), by)
    return own, added(rounded(share * p_d, TANGENTS, by), apart, by)


@jitted
def from_the_end(
    length: int, own: Any, tr: Any, along: Any, tr_d: Any, dual: bool, library: Any, by: Any, alpha: Any, alpha_d: Any,
    enter: Any, enter_d: Any, norm: Any, begun: Any, ended: Any, by_table: Any, by_duration: Any,
) -> None:  # fmt: skip
    """As ``masses`` with tangents, without beta: p and p' of each place are shared out among what leads there."""
    labels, one, wide = alpha.shape[1], len(tr) == 1, 1 if len(tr) == 1 else alpha.shape[1]
    terms, moved = np.empty((len(own[1]) + 1) * labels), np.empty((len(own[1]) + 1) * labels)
    at, at_d, first, first_d = (  # p, p' of alpha and enter
        np.zeros(alpha.shape), np.zeros(alpha.shape), np.zeros(alpha.shape), np.zeros(alpha.shape)
    )  # fmt: skip
    last = alpha[length].copy()
    _, z_d = summed(last, alpha_d[length], labels, dual, library, by)
    for c in range(labels):
        if last[c] > 0.0:
            at[length, c], at_d[length, c] = part(last[c], alpha_d[length, c], 1.0, 0.0, z_d, by)
    for t in range(length, -1, -1):
        for c in range(labels if one else 0):
            if first[t, c] == 0.0:
                continue
            entering(t, c, tr, tr_d, dual, by, alpha, alpha_d, terms, moved)
            summed(terms, moved, labels, dual, library, by)
            for b in range(labels):
                if terms[b] > 0.0:
                    p, p_d = part(terms[b], moved[b], first[t, c], first_d[t, c], enter_d[t, c], by)
                    at[t, b], at_d[t, b] = rounded(at[t, b] + p, POSTERIORS, by), added(at_d[t, b], p_d, by)
                    by_table[0, b, c] += p_d
        for c in range(labels):
            if t == 0 or at[t, c] == 0.0:
                continue
            count = into(t, c, own, tr, along, tr_d, dual, by, alpha, alpha_d, enter, enter_d, norm, terms, moved)
            summed(terms, moved, count, dual, library, by)
            for i in range(count):
                if not terms[i] > 0.0:
                    continue
                k, b = i // wide, i % wide
                s = t - k - 1
                p, p_d = part(terms[i], moved[i], at[t, c], at_d[t, c], alpha_d[t, c], by)
                if one:
                    first[s, c], first_d[s, c] = rounded(first[s, c] + p, POSTERIORS, by), added(first_d[s, c], p_d, by)
                else:
                    at[s, b], at_d[s, b] = rounded(at[s, b] + p, POSTERIORS, by), added(at_d[s, b], p_d, by)
                    by_table[k, b, c] += p_d
                by_duration[k, c] += p_d
                begun[s, c] = added(begun[s, c], p_d, by)
                ended[t, c] = added(ended[t, c], p_d, by)


def probe(
    problem: Problem, cotangent: Tensor, seed: int, bits: int, exp_ulps: float, log_ulps: float, interval: int = 1,
    gradients: bool = True, way: str = FROM_ALPHA,
) -> Rounded:  # fmt: skip
    """What a kernel that rounds each result to ``bits`` bits gives.

    Args:
        problem: the inputs, and their tangents if there are any.
        cotangent: [B] of log Z; it has no tangent.
        seed: below 2^62; draws the factors of the roundings and the errors of exp and log.
        bits: of each result.
        exp_ulps, log_ulps: largest errors, in units in the last place.
        interval: positions from one norm to the next.
        gradients: whether gradients, or with tangents the Hessian's products, are expected; there are none otherwise.
        way: of WAYS, with tangents; how probabilities are found.
    """
    dual, of, table = problem.tangents is not None, problem.of, problem.scores[problem.table]
    library, by = drawn(seed, bits, exp_ulps, log_ulps, interval)
    apart = drawn(mixed(seed, 1) % SEEDS, bits, exp_ulps, log_ulps, interval)[1] if way == FROM_BETA else by
    found = {name: np.zeros(shape) for name, shape in problem.shapes.items()} if gradients else {}
    pairs, durations = np.zeros_like(problem.kinds), np.zeros_like(problem.scores["duration_bias"])
    pairs_d = of(problem.tangents, problem.table).reshape(-1, *problem.kinds.shape[1:])
    logs, slopes = [], []
    for b, (length, weight) in enumerate(zip(problem.lengths, cotangent.detach().double().tolist(), strict=True)):
        own, along = (
            tuple(of(group, name, None if name == "duration_bias" else b) for name in _ORDER)
            for group in (problem.scores, problem.tangents)
        )
        shape = (problem.steps + 1, problem.labels)
        states = [np.zeros(shape if dual or i % 2 == 0 else (0, problem.labels)) for i in range(8)]
        ahead, back = np.zeros(problem.steps + 1), np.zeros(problem.steps + 1)
        given = (length, own, problem.kinds, along, pairs_d, dual, library, by)
        with np.errstate(all="ignore"):
            last, slope = forward(*given, *states[:4], ahead)
            z = float(ahead[length] + last)
            logs.append(z)
            slopes.append(slope)
            if length == 0 or z == -math.inf or not gradients:
                continue
            begun, ended = np.zeros(shape), np.zeros(shape)
            pairs[:], durations[:] = 0.0, 0.0
            sums = (begun, ended, pairs, durations)
            if way != SHARED:
                backward(*given[:-1], apart, *states[4:], back)
                if way == FROM_BETA:
                    first, slope = summed(states[4][0].copy(), states[5][0], problem.labels, dual, library, by)
                    z = float(back[0] + first)
                masses(*given, *states[:4], ahead, *states[4:], back, z, slope, *sums)
            else:
                from_the_end(*given, *states[:4], ahead, *sums)
        found[problem.table] += weight * pairs.reshape(table.shape)
        found["duration_bias"] += weight * durations
        found["cum_scores"][b] = weight * (ended - begun)
        for name, mass_ in (("proj_start", begun[:-1]), ("proj_end", ended[1:])):
            if name in found:
                found[name][b] = weight * mass_
    log_z, jvp = (torch.tensor(numbers, dtype=torch.float64) for numbers in (logs, slopes))
    return Rounded(log_z, jvp, {name: torch.from_numpy(x) for name, x in found.items()})
