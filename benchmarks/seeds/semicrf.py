"""Seeds 002 and 004: the backward of semi-CRFs in NumPy, for one sequence; invariants, clamps, long sequences.

The truth is torch.func.vjp of log Z, and for long sequences the float64 recursion of ``gradoracle.properties``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from gradoracle.properties.semicrf.readings import recursion as recursion
from numpy.typing import NDArray
from torch import Tensor

from .figures import Rows, off, vjp

T, K, C, EVERY = 64, 5, 3, 16  # EVERY: positions between two checkpoints
BOUND = 1e6  # at which seed 004 clamps alpha, edges and beta
Array = NDArray[Any]
Gradients = tuple[Array, Array, Array]
plus = np.logaddexp.reduce


class Scores(NamedTuple):
    """cum [T+1 C], transition [C C] by (before, label), duration [K C]."""

    cum: Array
    transition: Array
    duration: Array


class Passes(NamedTuple):
    """alpha [T+1 C] relative to norms [T+1], those of the last checkpoint; log Z; beta [T+1 C], not normalised."""

    alpha: Array
    norms: Array
    log_z: float
    beta: Array


def draw(positions: int, durations: int, labels: int, seed: int, log_z: float = 0.0) -> Scores:
    """Normal scores, representable in float32, shifted so that log Z grows by about ``log_z``."""
    normal = np.random.default_rng(seed).standard_normal
    cum = np.concatenate([np.zeros((1, labels)), normal((positions, labels)).cumsum(0)])
    given = (cum, normal((labels, labels)), normal((durations, labels)))
    scores = Scores(*(each.astype(np.float32).astype(np.float64) for each in given))
    # a whole number at each position for all labels, which changes no gradient
    return scores._replace(cum=scores.cum + (round(log_z / positions) * np.arange(positions + 1))[:, None])


def passes(scores: Scores, every: int, norm: Any = np.float64, kept: Any = np.float64) -> Passes:
    """Alpha, normalised at each checkpoint, with norms and log Z in dtype ``norm``; and beta, stored in ``kept``."""
    cum, transition, duration = scores
    last, shifted = len(cum) - 1, norm(0.0)
    alpha, beta, norms = np.zeros(cum.shape), np.zeros(cum.shape), np.zeros(len(cum))
    ring = np.full(duration.shape, -np.inf)  # what segments from the last K positions begin with, latest first
    for t in range(last + 1):
        if t > 0:
            alpha[t] = plus(ring + duration, 0) + cum[t]
        if t > 0 and t % every == 0 and t < last:
            shift = alpha[t].max()
            alpha[t] -= shift
            ring -= shift
            shifted = norm(shifted + norm(shift))
        norms[t] = shifted
        ring[1:] = ring[:-1].copy()
        ring[0] = plus(alpha[t][:, None] + transition, 0) - cum[t]
    ring = np.full(duration.shape, -np.inf)
    for t in range(last - 1, -1, -1):
        ring[1:] = ring[:-1].copy()
        ring[0] = beta[t + 1] + cum[t + 1]
        beta[t] = plus(transition + (plus(ring + duration, 0) - cum[t]), 1).astype(kept)
    return Passes(alpha, norms, float(norm(shifted + norm(plus(alpha[last], 0)))), beta)


def marginals(
    scores: Scores, own: Passes, *, relative: bool = True, bound: float = math.inf, most: float = math.inf,
    overwritten: bool = False,
) -> Array:  # fmt: skip
    """[T K C C] by (start, duration, before, label); 0 where there is no segment.

    Args:
        scores, own: the problem and its passes.
        relative: with a local reference and a scale, as in the seeds, or with one exponential.
        bound: at which alpha, edge and beta are clamped.
        most: at which the logarithm of the scale is clamped (the seeds: 0).
        overwritten: whether beta of t is already in the slot of t + K.
    """
    cum, transition, duration = scores
    steps, durations, labels = len(cum) - 1, len(duration), cum.shape[1]
    found = np.zeros((steps, durations, labels, labels))
    for k in range(1, min(durations, steps) + 1):
        starts = slice(0, steps - k + 1)
        edge = (cum[k:] - cum[:-k] + duration[k - 1])[:, None, :] + transition
        after = own.beta[starts] if overwritten and k == durations else own.beta[k:]
        left, middle, right = (x.clip(-bound, bound) for x in (own.alpha[starts][:, :, None], edge, after[:, None, :]))
        joint, shift = left + middle + right, own.norms[starts] - own.log_z
        if relative:
            reference = joint.max((1, 2))
            with np.errstate(over="ignore"):
                scale = np.exp((reference + shift).clip(-700 if most == 0 else -np.inf, most))
            found[starts, k - 1] = np.exp(joint - reference[:, None, None]) * scale[:, None, None]
        else:
            found[starts, k - 1] = np.exp(joint + shift[:, None, None])
    return found


def gradients(p: Array, *, spread: bool = False) -> Gradients:
    """dcum, dtransition, dduration of log Z; ``spread``: seed 002's dcum[t : t + k] += p."""
    (steps, durations), by_label = p.shape[:2], p.sum(2)  # [T K C]
    dcum = np.zeros((steps + 1, p.shape[3]))
    for k in range(1, min(durations, steps) + 1):
        mass = by_label[: steps - k + 1, k - 1]
        if spread:
            for i in range(k):
                dcum[i : i + len(mass)] += mass
        else:
            dcum[k:] += mass
            dcum[: len(mass)] -= mass
    return dcum, p.sum((0, 1)), by_label.sum(0)


def coverage(p: Array) -> Array:
    """[T] sums over the segments that cover each position, which should be 1."""
    return np.asarray(gradients(p, spread=True)[0][:-1].sum(1))


def uncovered(p: Array) -> float:
    return float(np.abs(coverage(p) - 1).max())


def log_z(cum: Tensor, transition: Tensor, duration: Tensor) -> Tensor:
    """The definition as a recursion, for torch.func."""
    alphas = [torch.zeros_like(cum[0])]
    for t in range(1, len(cum)):
        terms = [
            alphas[t - k][:, None] + transition + duration[k - 1] + cum[t] - cum[t - k]
            for k in range(1, min(len(duration), t) + 1)
        ]
        alphas.append(torch.logsumexp(torch.cat(terms), 0))
    return torch.logsumexp(alphas[-1], 0)


def truth(scores: Scores) -> Gradients:
    """By torch.func."""
    found = vjp(log_z, tuple(torch.from_numpy(x) for x in scores), torch.ones((), dtype=torch.float64))
    return found[0].numpy(), found[1].numpy(), found[2].numpy()


def rows() -> Rows:
    """The indices of the gradients, the uses of the cotangent, when beta is stored; then the functions below."""
    scores = draw(T, K, C, 0)
    own, true = passes(scores, EVERY), truth(scores)
    p = marginals(scores, own, most=0.0)
    yield "gradients of seed 004, against torch.func.vjp", off(gradients(p), true)
    spread = gradients(p, spread=True)[0]
    yield "dcum[t : t + k] += p (seed 002)", off(spread, true[0])
    yield "sum of that dcum, which should be 0", f"{spread.sum():.6f}, and by seed 004 {gradients(p)[0].sum():.1e}"
    other = truth(draw(T, K, C, 1))
    for g in ((1.0, 1.0), (0.3, 2.0)):
        once, twice = (
            tuple(g[0] ** n * a + g[1] ** n * b for a, b in zip(true[1:], other[1:], strict=True)) for n in (1, 2)
        )
        yield f"shared gradients, grad_output {g} applied twice (seed 002)", off(twice, once)
    late = marginals(scores, own, most=0.0, overwritten=True)
    yield "gradients, beta_t stored in its slot before p is taken", off(gradients(late), true)
    yield from invariants(scores)
    yield from clamps(scores, own, true)
    yield from long(131_072, 3, 2)


def invariants(scores: Scores) -> Rows:
    """The two critical invariants of seed 002."""
    for durations in (1, 2, 3, 5):
        few = draw(8, durations, C, 3)
        own = passes(few, 100)
        total, meeting = marginals(few, own).sum(), plus(own.alpha + own.beta, 1) - own.log_z
        gap = f"least of log sum exp(alpha + beta) - log Z {meeting.min():.3f}"
        yield f"T = 8, K = {durations}", f"sum of p {total:.3f}; {gap}"
    own = passes(scores, T + 1)
    p = marginals(scores, own)
    ends = [sum(p[t - k, k - 1].sum() for k in range(1, min(K, t) + 1)) for t in range(1, T + 1)]
    meeting = plus(own.alpha + own.beta, 1)[1:] - own.log_z
    yield "that less log P(boundary at t), largest, K = 5", float(np.abs(meeting - np.log(ends)).max())
    yield "coverage of a position - 1, largest", uncovered(p)


def clamps(scores: Scores, given: Passes, true: Gradients) -> Rows:
    """The effect of clamps at 1e6, and at a log scale of 0."""
    for size in (0.99e6, 1.1e6, 2e6, 4e6, -2e6):
        far = draw(T, K, C, 0, size)
        own = passes(far, EVERY)
        cut = marginals(far, own, bound=BOUND, most=0.0)
        errors = [off(gradients(p), true) for p in (cut, marginals(far, own))]
        covered = f"coverage {coverage(cut).min():.1g} to {coverage(cut).max():.3g}"
        name = f"gradients at log Z = {own.log_z:.3g}, cut at 1e6 (seed 004)"
        yield name, f"{errors[0]:.1e}, without {errors[1]:.1e}; {covered}"
    late = given._replace(norms=np.concatenate([given.norms[EVERY:], given.norms[-EVERY:]]))
    for name, most in (("log scale cut at 0", 0.0), ("not cut", math.inf)):
        p = marginals(scores, late, most=most)
        yield f"norms of the next checkpoint, {name}: gradients", off(gradients(p), true)
        yield "    largest p, and largest coverage", f"{p.max():.3g}, {coverage(p).max():.3g}"
    sentinel = scores._replace(duration=np.full_like(scores.duration, -1e9))
    own = passes(sentinel, EVERY)
    covered = coverage(marginals(sentinel, own, bound=BOUND, most=0.0)).max()
    yield "every duration forbidden by -1e9: log Z, largest coverage", f"{own.log_z:.3g}, {covered:.3g}"
    yield "float32(-1e9) + 1 == float32(-1e9)", f"{np.float32(-1e9) + np.float32(1) == np.float32(-1e9)}"


def long(length: int, durations: int, labels: int) -> Rows:
    """Overflow; the cost of norms, beta and sums in float32; and sizes of checkpoints and workspaces."""
    scores = draw(length, durations, labels, 5, length)
    names = ("cum_scores", "transition", "duration_bias")
    inputs = {name: torch.from_numpy(x) for name, x in zip(names, scores, strict=True)}
    inputs |= {"cum_scores": inputs["cum_scores"][None], "lengths": torch.tensor([length])}
    found = recursion.run(recursion.Problem(inputs), torch.ones(1))
    dcum, dduration = (found.gradients[name].squeeze(0).numpy() for name in (names[0], names[2]))
    every = math.isqrt(length * durations) + 1
    own, low = passes(scores, every), passes(scores, every, np.float32, np.float32)
    exact, sizes = float(found.log_z[0]), f"T = {length}, K = {durations}, C = {labels}"
    yield f"{sizes}, a checkpoint every {every}", f"log Z = {exact:.6g}"
    yield "largest alpha relative to its checkpoint", f"{own.alpha.max():.0f}"
    one = marginals(scores, own, relative=False)
    yield "largest of alpha + edge + beta - log Z", float(np.log(one.max()))

    def said(p: Array) -> str:
        return f"dcum {off(gradients(p)[0], dcum):.1e}, coverage - 1 {uncovered(p):.1e}"

    p = marginals(scores, own)
    yield "one exponential, float64, beta not normalised", said(one)
    yield "the relative form, float64, beta not normalised", said(p)
    yield "log Z with norms in float32, absolute error", abs(low.log_z - exact)
    yield "norms and log Z in float32, all else exact", said(marginals(scores, low._replace(beta=own.beta)))
    yield "beta stored in float32, all else exact", said(marginals(scores, own._replace(beta=low.beta)))
    yield "both", said(marginals(scores, low))
    spacings = [np.spacing(np.float32(size)) for size in (1.25e5, 2.5e5)]
    yield "spacing of float32 at 1.25e5 and 2.5e5", ", ".join(f"{spacing:.1e}" for spacing in spacings)
    by_place = p.sum(2).astype(np.float32).cumsum(0, dtype=np.float32)[-1]
    yield "dduration_bias added up in float32, position by position", off(by_place.astype(np.float64), dduration)
    for wide, many in ((3, 2), (64, 24)):
        every = math.isqrt(length * wide - 1) + 1
        count, taken = -(-length // every), wide * many * 8
        said_of = f"{count * taken} bytes in float64 at C = {many}, where sqrt(T K) of them are {every * taken}"
        yield f"T = {length}, K = {wide}", f"a checkpoint every {every} positions, {count} of them, {said_of}"
    square = 64 * 24 * 24
    yield "bytes of a [K C C] workspace, K = 64, C = 24", f"{square * 4} in float32, {square * 8} in float64"
