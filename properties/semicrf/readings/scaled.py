"""Semi-CRF forward and backward in float64 with exact exponents: what the oracle of long sequences is computed with.

A weight is a pair (m, e) that stands for m 2^e, m a float64 and e an int64: products multiply and add, no logarithm is
taken before the end, and nothing overflows at any length. Beside each weight travels its logarithmic derivative along
the tangents, where there are any, and with ``worst`` what a kernel's roundings make of it at most (budgets.py).

Compiled by numba where it is installed; the same code runs, some hundred times slower, where it is not. Axes: t 0 .. T,
c labels, k durations - 1, j 0 or the duration of a transition table (J = 1 for one table for all durations).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradoracle.model.machine_code import jitted

_LOG2_E = 1.0 / math.log(2.0)
# ln 2 in three parts, the first two of 20 bits: their products with whole numbers below 2^33 are exact
_LN2_HIGH = float.fromhex("0x1.62e42p-1")
_LN2_MID = float.fromhex("0x1.fdf46p-22")
_LN2_LOW = float.fromhex("0x1.3de6af278ece6p-42")
LARGEST_SCORE = 2.0**32  # beyond it the reduction of an exponential would lose digits
_POWERS = 2.0 ** -np.arange(256.0)  # what is 2^-256 below the rest of a sum is lost

WORST = 3  # of a kernel's largest errors: the unit roundoff; in units of it that of an exponential, and of a node


@jitted
def scaled_exp(x: float) -> tuple[float, int]:
    """(m, e) of exp(x), correct to an ulp for |x| < ``LARGEST_SCORE``; (0, 0) at -inf."""
    if x == -np.inf:
        return 0.0, 0
    if not np.isfinite(x):
        return x, 0  # NaN and inf stay what they are
    n = np.rint(x * _LOG2_E)
    return math.exp(((x - n * _LN2_HIGH) - n * _LN2_MID) - n * _LN2_LOW), int(n)


@jitted
def log_of(m: float, e: int) -> float:
    """log(m 2^e), to an ulp or two."""
    return e * _LN2_HIGH + (e * _LN2_MID + (e * _LN2_LOW + math.log(m)))


@jitted
def plus(m: float, e: int, w: float, by: float, at: int, moved: float) -> tuple[float, int, float]:
    """(m, e, w) + (by, at, moved), w and moved being the derivatives in the same units."""
    if by == 0.0:
        return m, e, w
    if m == 0.0:
        return by, at, moved
    shift = e - at
    if shift >= 0:
        power = _POWERS[shift] if shift < 256 else 0.0
        return m + by * power, e, w + moved * power
    power = _POWERS[-shift] if shift > -256 else 0.0
    return m * power + by, at, w * power + moved


@jitted
def tables(scores: Any, m: Any, e: Any) -> None:
    """exp of [n] scores into m, e [n]."""
    for i in range(len(scores)):
        m[i], e[i] = scaled_exp(scores[i])


@jitted
def slack(cum: Any, dur: Any, start: Any, end: Any, s: int, t: int, c: int, worst: Any) -> float:
    """How far off a kernel's weight of the segment s .. t of label c is at most, without its transition; relative."""
    if worst[0] == 0.0:
        return 0.0
    partial = cum[t, c] - cum[s, c]
    sizes = abs(partial)
    partial += dur[t - s - 1, c]
    sizes += abs(partial)
    if len(start):
        partial += start[s, c]
        sizes += abs(partial)
    if len(end):
        partial += end[t - 1, c]
        sizes += abs(partial)
    if not np.isfinite(partial):
        return 0.0
    error: float = worst[0] * (worst[1] + sizes)
    return error


@jitted
def loosen(m: Any, e: Any, d: Any, before: float, worst: Any) -> float:
    """Add to the derivatives what the roundings of one node make of it at most, relative; [C] weights.

    A kernel holds them relative to the largest of them once it has them all: logarithms count less ``before``, the
    largest one at the node before, which is what is given back for this one.
    """
    if worst[0] == 0.0:
        return 0.0
    top = -np.inf
    for c in range(len(m)):
        if m[c] > 0.0:
            top = max(top, math.log(m[c]) + e[c] / _LOG2_E)
    if not np.isfinite(top):  # nothing leads here, or NaN does
        return before
    for c in range(len(m)):
        if m[c] > 0.0:
            relative = math.log(m[c]) + e[c] / _LOG2_E - top
            growth = relative + top - before  # the logarithm before it is normalised
            d[c] += worst[0] * (worst[2] + abs(relative) + abs(growth))
    return top


@jitted
def settled(m: float, e: int) -> tuple[float, int]:
    """The same weight with m in [1/2, 1); 0, inf and NaN stay."""
    if m == 0.0 or not np.isfinite(m):
        return m, e
    fraction, exponent = math.frexp(m)
    return fraction, e + exponent


@jitted
def forward(
    length: int, cum: Any, dur: Any, start: Any, end: Any, worst: Any, tr: Any, tr_e: Any, tr_d: Any,
    du: Any, du_e: Any, du_d: Any, up: Any, up_e: Any, up_d: Any, down: Any, down_e: Any, down_d: Any,
    alpha: Any, alpha_e: Any, alpha_d: Any, enter: Any, enter_e: Any, enter_d: Any,
) -> None:  # fmt: skip
    """alpha [T+1 C], and with one transition table (J = 1) enter [T+1 C], the weight of starting c at t.

    Scores come as weights: transitions tr [J C C], durations du [K C], and up, down [T+1 C] of a segment's end and
    start. ``..._e`` are exponents, ``..._d`` logarithmic derivatives ([0 ...] where there are none).
    """
    labels, longest, one, dual = alpha.shape[1], len(du), len(tr) == 1, len(alpha_d) > 0
    before = 0.0
    for t in range(length + 1):
        for c in range(labels):
            m, e, w = (1.0, 0, 0.0) if t == 0 else (0.0, 0, 0.0)
            for k in range(1, min(longest, t) + 1):
                s = t - k
                off = slack(cum, dur, start, end, s, t, c, worst)
                if one:
                    by = enter[s, c] * du[k - 1, c]
                    moved = by * (enter_d[s, c] + du_d[k - 1, c] + off) if dual and by != 0.0 else 0.0
                    m, e, w = plus(m, e, w, by, enter_e[s, c] + du_e[k - 1, c], moved)
                else:
                    for b in range(labels):
                        by = alpha[s, b] * tr[k - 1, b, c] * down[s, c] * du[k - 1, c]
                        at = alpha_e[s, b] + tr_e[k - 1, b, c] + down_e[s, c] + du_e[k - 1, c]
                        moved = 0.0
                        if dual and by != 0.0:
                            moved = by * (alpha_d[s, b] + tr_d[k - 1, b, c] + down_d[s, c] + du_d[k - 1, c] + off)
                        m, e, w = plus(m, e, w, by, at, moved)
            if t > 0:
                if dual:
                    alpha_d[t, c] = w / m + up_d[t, c] if m > 0.0 else 0.0
                m, e = settled(m * up[t, c], e + up_e[t, c])
            elif dual:
                alpha_d[t, c] = 0.0
            alpha[t, c], alpha_e[t, c] = m, e
        if t > 0:
            before = loosen(alpha[t], alpha_e[t], alpha_d[t] if dual else worst[:0], before, worst)
        if one and t < length:
            for c in range(labels):
                m, e, w = 0.0, 0, 0.0
                for b in range(labels):
                    by = alpha[t, b] * tr[0, b, c]
                    moved = by * (alpha_d[t, b] + tr_d[0, b, c]) if dual and by != 0.0 else 0.0
                    m, e, w = plus(m, e, w, by, alpha_e[t, b] + tr_e[0, b, c], moved)
                if dual:
                    enter_d[t, c] = w / m + down_d[t, c] if m > 0.0 else 0.0
                enter[t, c], enter_e[t, c] = settled(m * down[t, c], e + down_e[t, c])


@jitted
def backward(
    length: int, cum: Any, dur: Any, start: Any, end: Any, worst: Any, tr: Any, tr_e: Any, tr_d: Any,
    du: Any, du_e: Any, du_d: Any, up: Any, up_e: Any, up_d: Any, down: Any, down_e: Any, down_d: Any,
    beta: Any, beta_e: Any, beta_d: Any, leave: Any, leave_e: Any, leave_d: Any, after: Any, after_e: Any, after_d: Any,
) -> None:  # fmt: skip
    """beta [T+1 C]; after = up beta; with one transition table leave [T+1 C], the weight of what follows a start of c.

    The rest is as for ``forward``.
    """
    labels, longest, one, dual = beta.shape[1], len(du), len(tr) == 1, len(beta_d) > 0
    before = 0.0
    for t in range(length, -1, -1):
        reach = min(longest, length - t)
        if one and t < length:
            for c in range(labels):
                m, e, w = 0.0, 0, 0.0
                for k in range(1, reach + 1):
                    off = slack(cum, dur, start, end, t, t + k, c, worst)
                    by = du[k - 1, c] * after[t + k, c]
                    moved = by * (du_d[k - 1, c] + after_d[t + k, c] + off) if dual and by != 0.0 else 0.0
                    m, e, w = plus(m, e, w, by, du_e[k - 1, c] + after_e[t + k, c], moved)
                if dual:
                    leave_d[t, c] = w / m + down_d[t, c] if m > 0.0 else 0.0
                leave[t, c], leave_e[t, c] = settled(m * down[t, c], e + down_e[t, c])
        for b in range(labels):
            m, e, w = (1.0, 0, 0.0) if t == length else (0.0, 0, 0.0)
            for c in range(labels if t < length else 0):
                if one:
                    by = tr[0, b, c] * leave[t, c]
                    moved = by * (tr_d[0, b, c] + leave_d[t, c]) if dual and by != 0.0 else 0.0
                    m, e, w = plus(m, e, w, by, tr_e[0, b, c] + leave_e[t, c], moved)
                else:
                    for k in range(1, reach + 1):
                        off = slack(cum, dur, start, end, t, t + k, c, worst)
                        by = tr[k - 1, b, c] * down[t, c] * du[k - 1, c] * after[t + k, c]
                        at = tr_e[k - 1, b, c] + down_e[t, c] + du_e[k - 1, c] + after_e[t + k, c]
                        moved = 0.0
                        if dual and by != 0.0:
                            moved = by * (tr_d[k - 1, b, c] + down_d[t, c] + du_d[k - 1, c] + after_d[t + k, c] + off)
                        m, e, w = plus(m, e, w, by, at, moved)
            if dual:
                beta_d[t, b] = w / m if m > 0.0 else 0.0
            beta[t, b], beta_e[t, b] = settled(m, e)
        if t < length:
            before = loosen(beta[t], beta_e[t], beta_d[t] if dual else worst[:0], before, worst)
        for c in range(labels):
            after[t, c], after_e[t, c] = settled(beta[t, c] * up[t, c], beta_e[t, c] + up_e[t, c])
            if dual:
                after_d[t, c] = beta_d[t, c] + up_d[t, c]


@jitted
def paths(length: int, tr: Any, dur: Any, start: Any, end: Any) -> int:
    """How many paths a sequence has, counted apart by the label before the first segment; 2 where there are more.

    By scores tr [J C C], dur [K C], start, end [T C] ([0 C] where there are none), where -inf forbids.
    """
    longest, labels = dur.shape
    found = np.zeros((length + 1, labels), np.int64)
    found[0] = 1
    for t in range(1, length + 1):
        for c in range(labels):
            if len(end) and end[t - 1, c] == -np.inf:
                continue
            for k in range(1, min(longest, t) + 1):
                if dur[k - 1, c] == -np.inf or (len(start) and start[t - k, c] == -np.inf):
                    continue
                for b in range(labels):
                    if tr[k - 1 if len(tr) > 1 else 0, b, c] != -np.inf:
                        found[t, c] = min(found[t, c] + found[t - k, b], 2)
    return min(int(found[length].sum()), 2)


@jitted
def share(m: float, e: int, d: float, z: Any, dual: bool, worst: Any) -> float:
    """The weight as a share of z = (m, e, log derivative), or the derivative of that share where ``dual``.

    With ``worst`` the derivative has twice the rounding of the share's logarithm besides: a kernel adds up that
    logarithm, and a norm that is no larger than it and what it is added to (recursion.py).
    """
    if m == 0.0:
        return 0.0
    p = math.ldexp(m / z[0], int(min(max(e - int(z[1]), -2000), 2000)))
    change = d - z[2]
    if worst[0] > 0.0 and p > 0.0:
        change += 2.0 * worst[0] * abs(math.log(p))
    return p * change if dual else p


@jitted
def masses(
    length: int, cum: Any, dur: Any, start: Any, end: Any, worst: Any, tr: Any, tr_e: Any, tr_d: Any,
    du: Any, du_e: Any, du_d: Any, down: Any, down_e: Any, down_d: Any, alpha: Any, alpha_e: Any, alpha_d: Any,
    enter: Any, enter_e: Any, enter_d: Any, beta: Any, beta_e: Any, beta_d: Any, leave: Any, leave_e: Any, leave_d: Any,
    after: Any, after_e: Any, after_d: Any, z: Any, begun: Any, ended: Any, by_table: Any, by_duration: Any,
    segments: Any,
) -> None:  # fmt: skip
    """begun, ended [T+1 C]: probabilities that a segment of c begins, ends at t, or their derivatives by the tangents.

    by_table [2J C C] and by_duration [2K C] take the sums over t by transition and by duration, in their second halves
    the sums of the squares. segments [T K C], or [0 ...], takes each probability.
    """
    labels, longest, one, dual = alpha.shape[1], len(du), len(tr) == 1, len(alpha_d) > 0
    tables_, none = len(tr), 0.0
    for t in range(length + 1):
        for c in range(labels):
            if t > 0:
                d = alpha_d[t, c] + beta_d[t, c] if dual else none
                ended[t, c] = share(alpha[t, c] * beta[t, c], alpha_e[t, c] + beta_e[t, c], d, z, dual, worst)
            if t == length:
                continue
            total = 0.0
            for k in range(1, min(longest, length - t) + 1):
                off = slack(cum, dur, start, end, t, t + k, c, worst)
                m = du[k - 1, c] * after[t + k, c]
                e = du_e[k - 1, c] + after_e[t + k, c]
                d = du_d[k - 1, c] + after_d[t + k, c] + 4.0 * off if dual else none  # 3: added up again
                if one:
                    d = d + enter_d[t, c] if dual else none
                    p = share(m * enter[t, c], e + enter_e[t, c], d, z, dual, worst)
                else:
                    p = 0.0
                    for b in range(labels):
                        whole = m * alpha[t, b] * tr[k - 1, b, c] * down[t, c]
                        at = e + alpha_e[t, b] + tr_e[k - 1, b, c] + down_e[t, c]
                        by = d + alpha_d[t, b] + tr_d[k - 1, b, c] + down_d[t, c] if dual else none
                        part = share(whole, at, by, z, dual, worst)
                        by_table[k - 1, b, c] += part
                        by_table[tables_ + k - 1, b, c] += part * part
                        p += part
                total += p
                by_duration[k - 1, c] += p
                by_duration[longest + k - 1, c] += p * p
                if len(segments):
                    segments[t, k - 1, c] = p
            begun[t, c] = total
            if one:
                for b in range(labels):
                    d = alpha_d[t, b] + tr_d[0, b, c] + leave_d[t, c] if dual else none
                    whole = alpha[t, b] * tr[0, b, c] * leave[t, c]
                    at = alpha_e[t, b] + tr_e[0, b, c] + leave_e[t, c]
                    part = share(whole, at, d, z, dual, worst)
                    by_table[0, b, c] += part
                    by_table[1, b, c] += part * part
