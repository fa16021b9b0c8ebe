"""The arithmetic of the semi-CRF's probes: every result rounded, exponentials and logarithms as a library errs.

A rounding is one of c x to p bits, divided by c: numbers in log units share a factor c, weights another, posteriors and
tangents theirs, and forward, backward and posteriors the same ones. So numbers that are equal err alike, what is exact
on a common lattice stays exact, and a parameter that is added to numbers on a coarser lattice loses the same bits
wherever the sum has that size. That loss differs between forward and backward, where the parameter is added to
different numbers: alpha and beta drift apart in proportion to T, which roundings drawn for each position by itself do
not show.

Compiled by numba where it is installed.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from gradoracle.properties.semicrf.readings.recursion import Array

from gradoracle.model.machine_code import jitted
from gradoracle.oracle.rounding.probes import mixed

# ``by``: Veltkamp's splitter, the factors of logs, of weights, of posteriors and of tangents with their inverses, half
# the largest errors of exp and log, and the number of positions from one norm to the next
LOGS, WEIGHTS, POSTERIORS, TANGENTS, _INVERSE, EXP, LOG, INTERVAL = 1, 2, 3, 4, 4, 9, 10, 11
# ``library`` [2 exponents 5]: the errors of exp and log, smooth as the engine's of a polynomial: by 3 bits of x
SEEDS = 1 << 62  # how many seeds a probe may have
_LEAST = 64  # exponents beyond it, either way, are alike
LOST = -40.0  # exp of less vanishes beside 1, in 30 bits


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
def added(one: float, other: float, by: Any) -> float:
    """The sum of two tangents."""
    return rounded(one + other, TANGENTS, by)


@jitted
def summed(terms: Any, moved: Any, count: int, dual: bool, library: Any, by: Any) -> tuple[float, float]:
    """Log of the sum of exp of ``count`` terms, and where ``dual`` its tangent from ``moved``, those of the terms.

    Terms less the largest are added up one after the other, and the largest is added again to the logarithm. Where
    ``dual`` the terms become their shares of the sum, which do not add up to 1; where scores repeat they err alike.
    """
    top = -np.inf
    for i in range(count):
        if not terms[i] <= top:  # NaN leads, too
            top = terms[i]
    if not np.isfinite(top):
        return top, 0.0
    total, tangent = 0.0, 0.0
    for i in range(count):
        terms[i] -= top
        if terms[i] > LOST:  # what is below is lost at any number of bits
            terms[i] = weight(rounded(terms[i], LOGS, by), WEIGHTS, library, by)
            total = rounded(total + terms[i], WEIGHTS, by)
        else:
            terms[i] = 0.0
    for i in range(count if dual else 0):
        if terms[i] > 0.0:
            terms[i] = rounded(terms[i] / total, WEIGHTS, by)
            tangent = added(tangent, rounded(terms[i] * moved[i], TANGENTS, by), by)
    return log_of(total, top, library, by), tangent


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


@functools.lru_cache(maxsize=64)  # probes have the same seeds every time
def drawn(seed: int, bits: int, exp_ulps: float, log_ulps: float, interval: int) -> tuple[Array, Array]:
    """(library, by) of a probe."""
    count = 2 * 2 * _LEAST * 5
    errors = [mixed(seed, place) / 2.0**63 - 1.0 for place in range(3, 3 + count)]
    factors = [2.0 ** -(mixed(seed, place) / 2.0**64) for place in (0, 1, 2, 3 + count)]
    unit = 2.0**-bits
    by = [2.0 ** (53 - bits) + 1.0, *factors, *(1.0 / factor for factor in factors), exp_ulps * unit, log_ulps * unit]
    return np.array(errors).reshape(2, 2 * _LEAST, 5), np.array([*by, interval])
