"""Semi-CRF as a kernel rounds it: forward and backward in the log domain, every result rounded; for probes of budgets.

The algorithm of budgets.py, in float64 with each result rounded to p bits. A rounding is one of c x, divided
by c: numbers in log units share a factor c, weights another, and forward, backward and posteriors the same ones. So
numbers that are equal err alike, what is exact on a common lattice stays exact, and a parameter that is added to
numbers on a coarser lattice loses the same bits wherever the sum has that size. That loss is not the same forward and
backward, where it is added to different numbers: alpha and beta then drift apart in proportion to T, which roundings
that are drawn for each position by itself do not show.

Compiled by numba where it is installed. Axes as in scaled.py; a transition for all durations has J = 1.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gradoracle.properties.semicrf.readings.recursion import Array, Problem
from torch import Tensor

from gradoracle.oracle.exact.machine_code import jitted
from gradoracle.oracle.rounding.probes import mixed

# ``by``: Veltkamp's splitter, the factors of logs, of weights, of posteriors and of tangents with their inverses, half
# the largest errors of exp and log, and the number of positions from one norm to the next
LOGS, WEIGHTS, POSTERIORS, TANGENTS, _INVERSE, EXP, LOG, INTERVAL = 1, 2, 3, 4, 4, 9, 10, 11
# ``library`` [2 exponents 5]: the errors of exp and log, smooth as the engine's of a polynomial: by 3 bits of x
SEEDS = 1 << 62  # how many seeds a probe may have
_LEAST = 64  # exponents beyond it, either way, are alike
LOST = -40.0  # exp of less vanishes beside 1, in 30 bits


@dataclass(frozen=True)
class Rounded:
    """log Z [B] and gradients by the name of the input, float64, of one probe."""

    log_z: Tensor
    gradients: dict[str, Tensor]


@jitted
def rounded(x: float, kind: int, by: Any) -> float:
    """``x`` to the bits that Veltkamp's splitter leaves of it times the factor of a kind; what is not finite stays."""
    if not np.isfinite(x):
        return x
    scaled = x * by[kind]
    large = scaled * by[0]
    return (large - (large - scaled)) * by[kind + _INVERSE]


@jitted
def smooth(x: float, library: Any) -> float:
    """The error of a library's function at x, in (-1, 1): a number for each 3 bits of x."""
    if not np.isfinite(x):
        return 0.0
    fraction, exponent = math.frexp(abs(x))
    row = min(max(int(exponent) + _LEAST, 0), 2 * _LEAST - 1)
    error: float = library[row, int(fraction * 8.0 + 0.5) - 4]
    return error


@jitted
def weight(x: float, kind: int, library: Any, by: Any) -> float:
    """exp(x) as a library gives it: exact at 0, else off by a smooth function of x, and rounded."""
    if x == -np.inf:
        return 0.0
    if x == 0.0:
        return 1.0
    return rounded(math.exp(x) * (1.0 + by[EXP] * smooth(x, library[0])), kind, by)


@jitted
def summed(terms: Any, count: int, library: Any, by: Any) -> float:
    """Log of the sum of exp of ``count`` terms: less the largest, one after the other, the largest added again."""
    top = -np.inf
    for i in range(count):
        if not terms[i] <= top:  # NaN leads, too
            top = terms[i]
    if not np.isfinite(top):
        return top
    total = 0.0
    for i in range(count):
        if terms[i] - top > LOST:  # what is below is lost at any number of bits
            total = rounded(total + weight(rounded(terms[i] - top, LOGS, by), WEIGHTS, library, by), WEIGHTS, by)
    return log_of(total, top, library, by)


@jitted
def log_of(total: float, top: float, library: Any, by: Any) -> float:
    """log(total) + top: exact at 1, else off as a library's is, and rounded."""
    log = math.log(total)
    if total != 1.0:
        log = rounded(log + by[LOG] * max(abs(log), 1.0) * smooth(total, library[1]), LOGS, by)
    return rounded(top + log, LOGS, by)


@jitted
def score(cum: Any, dur: Any, start: Any, end: Any, s: int, t: int, c: int, kind: int, by: Any) -> float:
    """The score of the segment s .. t of label c, without its transition; or its tangent, of those of its parts.

    Where norms are not taken at each position, what belongs to s and to t is relative to cum_scores at the last norm.
    """
    if by[INTERVAL] > 1.0:
        last = int(t // by[INTERVAL]) * int(by[INTERVAL])
        left = rounded(cum[last, c] - cum[s, c], kind, by)
        right = rounded(cum[t, c] - cum[last, c], kind, by)
        if len(start):
            left = rounded(left + start[s, c], kind, by)
        if len(end):
            right = rounded(right + end[t - 1, c], kind, by)
        return rounded(rounded(left + dur[t - s - 1, c], kind, by) + right, kind, by)
    partial = rounded(rounded(cum[t, c] - cum[s, c], kind, by) + dur[t - s - 1, c], kind, by)
    if len(start):
        partial = rounded(partial + start[s, c], kind, by)
    if len(end):
        partial = rounded(partial + end[t - 1, c], kind, by)
    return partial


@jitted
def forward(
    length: int, cum: Any, dur: Any, start: Any, end: Any, tr: Any, library: Any, by: Any, alpha: Any, enter: Any,
    norm: Any,
) -> float:  # fmt: skip
    """alpha, enter [T+1 C] relative to norm [T+1], the largest alpha there; gives log Z less the last norm."""
    labels, longest, one = alpha.shape[1], len(dur), len(tr) == 1
    terms = np.empty(max(longest, 1) * labels)
    before = np.empty((longest, labels))  # enter, or alpha, where a segment may start
    for t in range(length + 1):
        for k in range(min(longest, t)):
            s = t - k - 1
            for c in range(labels):
                held = enter[s, c] if one else alpha[s, c]
                before[k, c] = rounded(held + (norm[s] - norm[t - 1]), LOGS, by)
        for c in range(labels):
            if t == 0:
                alpha[0, c] = 0.0
                continue
            count = 0
            for k in range(min(longest, t)):
                here = score(cum, dur, start, end, t - k - 1, t, c, LOGS, by)
                for b in range(1 if one else labels):
                    if one:
                        terms[count] = rounded(here + before[k, c], LOGS, by)
                    else:
                        terms[count] = rounded(rounded(here + tr[k, b, c], LOGS, by) + before[k, b], LOGS, by)
                    count += 1
            alpha[t, c] = summed(terms, count, library, by)
        norm[t] = norm[t - 1] if t > 0 else 0.0
        if t > 0 and t % by[INTERVAL] == 0.0:
            norm[t] += settle(alpha[t], by)
        for c in range(labels if one else 0):
            for b in range(labels):
                terms[b] = rounded(alpha[t, b] + tr[0, b, c], LOGS, by)
            enter[t, c] = summed(terms, labels, library, by)
    return summed(alpha[length], labels, library, by)


@jitted
def backward(
    length: int, cum: Any, dur: Any, start: Any, end: Any, tr: Any, library: Any, by: Any, beta: Any, leave: Any,
    norm: Any,
) -> None:  # fmt: skip
    """beta [T+1 C] relative to norm [T+1], the largest beta there, and leave [T+1 C] relative to the next norm."""
    labels, longest, one = beta.shape[1], len(dur), len(tr) == 1
    terms = np.empty(max(longest, 1) * labels)
    here, after = np.empty((longest, labels)), np.empty((longest, labels))  # a segment's score, and beta after it
    for t in range(length, -1, -1):
        if t == length:
            beta[t], norm[t] = 0.0, 0.0
            continue
        reach = min(longest, length - t)
        for k in range(reach):
            for c in range(labels):
                here[k, c] = score(cum, dur, start, end, t, t + k + 1, c, LOGS, by)
                after[k, c] = rounded(beta[t + k + 1, c] + (norm[t + k + 1] - norm[t + 1]), LOGS, by)
        for c in range(labels if one else 0):
            for k in range(reach):
                terms[k] = rounded(here[k, c] + after[k, c], LOGS, by)
            leave[t, c] = summed(terms, reach, library, by)
        for b in range(labels):
            count = 0
            for c in range(labels):
                for k in range(1 if one else reach):
                    if one:
                        terms[count] = rounded(tr[0, b, c] + leave[t, c], LOGS, by)
                    else:
                        terms[count] = rounded(rounded(here[k, c] + tr[k, b, c], LOGS, by) + after[k, c], LOGS, by)
                    count += 1
            beta[t, b] = summed(terms, count, library, by)
        norm[t] = norm[t + 1] + (settle(beta[t], by) if (length - t) % by[INTERVAL] == 0.0 else 0.0)


@jitted
def settle(logs: Any, by: Any) -> float:
    """Make [C] logarithms relative to the largest of them, which is given back; 0 where none is finite."""
    top = -np.inf
    for c in range(len(logs)):
        top = max(top, logs[c])
    if not np.isfinite(top):
        return 0.0
    for c in range(len(logs)):
        logs[c] = rounded(logs[c] - top, LOGS, by)
    return top


@jitted
def posterior(log: float, norm: float, library: Any, by: Any) -> float:
    """exp(log + norm), both rounded."""
    return weight(rounded(log + rounded(norm, LOGS, by), LOGS, by), POSTERIORS, library, by)


@jitted
def masses(
    length: int, cum: Any, dur: Any, start: Any, end: Any, tr: Any, library: Any, by: Any, alpha: Any, enter: Any,
    alpha_norm: Any, beta: Any, leave: Any, beta_norm: Any, log_z: float, begun: Any, ended: Any, by_table: Any,
    by_duration: Any,
) -> None:  # fmt: skip
    """begun, ended [T+1 C]; by_table [J C C] and by_duration [K C], added up exactly; as ``semicrf_scaled.masses``."""
    labels, longest, one = alpha.shape[1], len(dur), len(tr) == 1
    for t in range(length + 1):
        for c in range(labels):
            if t > 0:
                both = rounded(alpha[t, c] + beta[t, c], LOGS, by)
                ended[t, c] = posterior(both, alpha_norm[t] + beta_norm[t] - log_z, library, by)
            total = 0.0
            for k in range(1, min(longest, length - t) + 1):
                here = score(cum, dur, start, end, t, t + k, c, LOGS, by)
                norm = alpha_norm[t] + beta_norm[t + k] - log_z
                if one:
                    both = rounded(rounded(here + enter[t, c], LOGS, by) + beta[t + k, c], LOGS, by)
                    p = posterior(both, norm, library, by)
                    total = rounded(total + p, POSTERIORS, by)
                else:
                    p = 0.0
                    for b in range(labels):
                        edge = rounded(here + tr[k - 1, b, c], LOGS, by)
                        both = rounded(rounded(edge + alpha[t, b], LOGS, by) + beta[t + k, c], LOGS, by)
                        part = posterior(both, norm, library, by)
                        by_table[k - 1, b, c] += part
                        p += part
                        total = rounded(total + part, POSTERIORS, by)
                by_duration[k - 1, c] += p
            begun[t, c] = total
            for b in range(labels if one and t < length else 0):
                both = rounded(rounded(alpha[t, b] + tr[0, b, c], LOGS, by) + leave[t, c], LOGS, by)
                by_table[0, b, c] += posterior(both, alpha_norm[t] + beta_norm[t + 1] - log_z, library, by)


@functools.lru_cache(maxsize=64)  # probes have the same seeds every time
def drawn(seed: int, bits: int, exp_ulps: float, log_ulps: float, interval: int) -> tuple[Array, Array]:
    """(library, by) of a probe."""
    count = 2 * 2 * _LEAST * 5
    errors = [mixed(seed, place) / 2.0**63 - 1.0 for place in range(3, 3 + count)]
    factors = [2.0 ** -(mixed(seed, place) / 2.0**64) for place in (0, 1, 2, 3 + count)]
    unit = 2.0**-bits
    by = [2.0 ** (53 - bits) + 1.0, *factors, *(1.0 / factor for factor in factors), exp_ulps * unit, log_ulps * unit]
    return np.array(errors).reshape(2, 2 * _LEAST, 5), np.array([*by, interval])


def probe(
    problem: Problem, cotangent: Tensor, seed: int, bits: int, exp_ulps: float, log_ulps: float, interval: int = 1,
    gradients: bool = True,
) -> Rounded:  # fmt: skip
    """log Z and the gradients of <cotangent [B], log Z> as a kernel rounds them to ``bits`` bits.

    Args:
        problem: the inputs, without tangents.
        cotangent: [B].
        seed: below 2^62; draws the factors of the roundings and the errors of exp and log.
        bits: of each result.
        exp_ulps, log_ulps: largest errors, in units in the last place.
        interval: positions from one norm to the next.
        gradients: whether they are expected; there are none otherwise.
    """
    library, by = drawn(seed, bits, exp_ulps, log_ulps, interval)
    found = {name: np.zeros(shape) for name, shape in problem.shapes.items()}
    dur, table = problem.scores["duration_bias"], problem.scores[problem.table]
    kinds = table.reshape(-1, problem.labels, problem.labels)
    logs = []
    for b, (length, weight_) in enumerate(zip(problem.lengths, cotangent.detach().double().tolist(), strict=True)):
        cum, start, end = (problem.of(problem.scores, name, b) for name in ("cum_scores", "proj_start", "proj_end"))
        shape = (problem.steps + 1, problem.labels)
        alpha, enter, beta, leave, begun, ended = (np.zeros(shape) for _ in range(6))
        ahead, back = np.zeros(problem.steps + 1), np.zeros(problem.steps + 1)
        given = (length, cum, dur, start, end, kinds, library, by)
        with np.errstate(all="ignore"):
            last = forward(*given, alpha, enter, ahead)
            log_z = float(ahead[length] + last)
            logs.append(log_z)
            if length == 0 or log_z == -math.inf or not gradients:
                continue
            backward(*given, beta, leave, back)
            pairs, durations = np.zeros_like(kinds), np.zeros_like(dur)
            masses(*given, alpha, enter, ahead, beta, leave, back, log_z, begun, ended, pairs, durations)
        found[problem.table] += weight_ * pairs.reshape(table.shape)
        found["duration_bias"] += weight_ * durations
        found["cum_scores"][b] = weight_ * (ended - begun)
        for name, mass in (("proj_start", begun[:-1]), ("proj_end", ended[1:])):
            if name in found:
                found[name][b] = weight_ * mass
    products = {name: torch.from_numpy(x) for name, x in found.items()} if gradients else {}
    return Rounded(torch.tensor(logs, dtype=torch.float64), products)
