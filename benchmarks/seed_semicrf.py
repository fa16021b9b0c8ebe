"""What seeds 002 and 004 claim of semi-CRFs, measured for docs/seeds.md: ``python benchmarks/seed_semicrf.py`` (CPU).

The seeds' backward is done here in NumPy, one sequence at a time, full lengths; all of it in float64 where no dtype is
named. The truth is torch.func.vjp of log Z, and at T = LONG the float64 recursion of ``gradoracle.properties``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from gradoracle.properties.semicrf.readings import recursion as recursion
from numpy.typing import NDArray
from torch import Tensor

T, K, C = 64, 5, 3
LONG, LONG_K, LONG_C = 131_072, 3, 2
BOUND = 1e6  # what seed 004 cuts alpha, edges and beta at
Array = NDArray[Any]
Gradients = tuple[Array, Array, Array]


class Scores(NamedTuple):
    """cum [T+1 C], transition [C C] by (before, label), duration [K C]."""

    cum: Array
    transition: Array
    duration: Array


class Alphas(NamedTuple):
    """alpha [T+1 C] relative to norms [T+1], each of the last checkpoint, and log Z."""

    alpha: Array
    norms: Array
    log_z: float


def draw(positions: int, durations: int, labels: int, seed: int) -> Scores:
    """Normal scores in float32's numbers."""
    generator = np.random.default_rng(seed)
    steps = generator.standard_normal((positions, labels)).cumsum(0)
    cum = np.concatenate([np.zeros((1, labels)), steps])
    given = (cum, generator.standard_normal((labels, labels)), generator.standard_normal((durations, labels)))
    return Scores(*(each.astype(np.float32).astype(np.float64) for each in given))


def moved(scores: Scores, log_z: float) -> Scores:
    """A whole number added at each position to all labels: log Z grows by about ``log_z``, and no gradient changes."""
    steps = len(scores.cum) - 1
    return scores._replace(cum=scores.cum + (round(log_z / steps) * np.arange(steps + 1))[:, None])


def forward(scores: Scores, every: int, norm: Any = np.float64) -> Alphas:
    """Alpha, normalised at each checkpoint, ``every`` so many positions, with norms and log Z in a dtype."""
    cum, transition, duration = scores
    last = len(cum) - 1
    alpha, norms = np.zeros(cum.shape), np.zeros(len(cum))
    ring = np.full(duration.shape, -np.inf)  # what segments from the last K positions begin with, latest first
    shifted = norm(0.0)
    for t in range(last + 1):
        if t > 0:
            alpha[t] = np.logaddexp.reduce(ring + duration, 0) + cum[t]
        if t > 0 and t % every == 0 and t < last:
            shift = alpha[t].max()
            alpha[t] -= shift
            ring -= shift
            shifted = norm(shifted + norm(shift))
        norms[t] = shifted
        ring[1:] = ring[:-1].copy()
        ring[0] = np.logaddexp.reduce(alpha[t][:, None] + transition, 0) - cum[t]
    return Alphas(alpha, norms, float(norm(shifted + norm(np.logaddexp.reduce(alpha[last], 0)))))


def backward(scores: Scores, kept: Any = np.float64) -> Array:
    """Beta [T+1 C], not normalised, stored in a dtype."""
    cum, transition, duration = scores
    last = len(cum) - 1
    beta = np.zeros(cum.shape)
    ring = np.full(duration.shape, -np.inf)
    for t in range(last - 1, -1, -1):
        ring[1:] = ring[:-1].copy()
        ring[0] = beta[t + 1] + cum[t + 1]
        leave = np.logaddexp.reduce(ring + duration, 0) - cum[t]
        beta[t] = np.logaddexp.reduce(transition + leave, 1).astype(kept)
    return beta


def marginals(
    scores: Scores, alphas: Alphas, beta: Array, *, relative: bool = True, bound: float = math.inf,
    most: float = math.inf, overwritten: bool = False,
) -> Array:  # fmt: skip
    """[T K C C] by (start, duration, before, label); 0 where there is no segment.

    Args:
        scores, alphas, beta: the problem and its passes.
        relative: by a local reference and a scale, as the seeds do it, or by one exponential.
        bound: what alpha, edge and beta are cut at (seed 004: 1e6).
        most: what the logarithm of the scale is cut at (the seeds: 0).
        overwritten: beta of t stands in the slot of t + K already.
    """
    cum, transition, duration = scores
    steps, durations, labels = len(cum) - 1, len(duration), cum.shape[1]
    found = np.zeros((steps, durations, labels, labels))
    for k in range(1, min(durations, steps) + 1):
        starts = slice(0, steps - k + 1)
        edge = (cum[k:] - cum[:-k] + duration[k - 1])[:, None, :] + transition
        after = beta[starts] if overwritten and k == durations else beta[k:]
        left, middle, right = (
            x.clip(-bound, bound) for x in (alphas.alpha[starts][:, :, None], edge, after[:, None, :])
        )
        joint = left + middle + right
        shift = alphas.norms[starts] - alphas.log_z
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
    steps, durations = p.shape[:2]
    by_label = p.sum(2)  # [T K C]
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
    """[T] sums over the segments across each position, which are 1."""
    return np.asarray(gradients(p, spread=True)[0][:-1].sum(1))


def log_z(cum: Tensor, transition: Tensor, duration: Tensor) -> Tensor:
    """The definition by its recursion, for torch.func."""
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
    inputs = tuple(torch.from_numpy(x) for x in scores)
    found: tuple[Tensor, Tensor, Tensor] = torch.func.vjp(log_z, *inputs)[1](torch.ones((), dtype=torch.float64))
    return found[0].numpy(), found[1].numpy(), found[2].numpy()


def off(got: tuple[Array, ...] | Array, true: tuple[Array, ...] | Array) -> float:
    """Relative error in the 2-norm, all arrays together."""
    own, whole = (
        x.ravel() if isinstance(x, np.ndarray) else np.concatenate([a.ravel() for a in x]) for x in (got, true)
    )
    return float(np.linalg.norm(own - whole) / np.linalg.norm(whole))


def formulas(scores: Scores) -> None:
    """Which gradient goes where, how often the cotangent counts, and when beta is stored."""
    alphas, beta, true = forward(scores, 16), backward(scores), truth(scores)
    p = marginals(scores, alphas, beta, most=0.0)
    tell("gradients of seed 004, against torch.func.vjp", off(gradients(p), true))
    spread = gradients(p, spread=True)[0]
    tell("dcum[t : t + k] += p (seed 002)", off(spread, true[0]))
    sums = (spread.sum(), gradients(p)[0].sum())
    print(f"{'sum of that dcum, which should be 0':66s} {sums[0]:.6f}, and by seed 004 {sums[1]:.1e}")
    other = truth(draw(T, K, C, 1))
    for g in ((1.0, 1.0), (0.3, 2.0)):
        once, twice = (
            tuple(g[0] ** n * a + g[1] ** n * b for a, b in zip(true[1:], other[1:], strict=True)) for n in (1, 2)
        )
        tell(f"shared gradients, grad_output {g} applied twice (seed 002)", off(twice, once))
    late = marginals(scores, alphas, beta, most=0.0, overwritten=True)
    tell("gradients, beta_t stored in its slot before p is taken", off(gradients(late), true))


def invariants(scores: Scores) -> None:
    """The two critical invariants of seed 002."""
    for durations in (1, 2, 3, 5):
        few = draw(8, durations, C, 3)
        alphas, beta = forward(few, 100), backward(few)
        total = marginals(few, alphas, beta).sum()
        meeting = np.logaddexp.reduce(alphas.alpha + beta, 1) - alphas.log_z
        gap = f"least of log sum exp(alpha + beta) - log Z {meeting.min():.3f}"
        print(f"T = 8, K = {durations}: sum of p {total:.3f}; {gap}")
    alphas, beta = forward(scores, T + 1), backward(scores)
    p = marginals(scores, alphas, beta).sum(2)  # [T K C]
    ends = np.array([sum(p[t - k, k - 1].sum() for k in range(1, min(K, t) + 1)) for t in range(1, T + 1)])
    meeting = np.logaddexp.reduce(alphas.alpha + beta, 1)[1:] - alphas.log_z
    print(f"{'that less log P(boundary at t), largest, K = 5':66s} {np.abs(meeting - np.log(ends)).max():.1e}")
    print(
        f"{'coverage of a position - 1, largest':66s} {np.abs(coverage(marginals(scores, alphas, beta)) - 1).max():.1e}"
    )


def clamps(scores: Scores) -> None:
    """What is cut at 1e6, and at a log scale of 0."""
    true = truth(scores)
    for size in (0.99e6, 1.1e6, 2e6, 4e6, -2e6):
        own = moved(scores, size)
        alphas, beta = forward(own, 16), backward(own)
        cut = marginals(own, alphas, beta, bound=BOUND, most=0.0)
        free = marginals(own, alphas, beta)
        errors = [off(gradients(p), true) for p in (cut, free)]
        name = f"gradients at log Z = {alphas.log_z:.3g}, cut at 1e6 (seed 004)"
        covered = f"coverage {coverage(cut).min():.1g} to {coverage(cut).max():.3g}"
        print(f"{name:66s} {errors[0]:.1e}, without {errors[1]:.1e}; {covered}")
    alphas, beta = forward(scores, 16), backward(scores)
    next_one = alphas._replace(norms=np.concatenate([alphas.norms[16:], alphas.norms[-16:]]))
    for name, most in (("log scale cut at 0", 0.0), ("not cut", math.inf)):
        p = marginals(scores, next_one, beta, most=most)
        tell(f"norms of the next checkpoint, {name}: gradients", off(gradients(p), true))
        print(f"{'    largest p, and largest coverage':66s} {p.max():.3g}, {coverage(p).max():.3g}")
    sentinel = scores._replace(duration=np.full_like(scores.duration, -1e9))
    alphas, beta = forward(sentinel, 16), backward(sentinel)
    p = marginals(sentinel, alphas, beta, bound=BOUND, most=0.0)
    print(
        f"{'every duration forbidden by -1e9: log Z, largest coverage':66s} {alphas.log_z:.3g}, {coverage(p).max():.3g}"
    )
    print(f"{'float32(-1e9) + 1 == float32(-1e9)':66s} {np.float32(-1e9) + np.float32(1) == np.float32(-1e9)}")


def long() -> None:
    """T = 131 072: what overflows, and what norms, beta and sums in float32 cost."""
    scores = moved(draw(LONG, LONG_K, LONG_C, 5), LONG)
    inputs = {
        "cum_scores": torch.from_numpy(scores.cum)[None],
        "transition": torch.from_numpy(scores.transition),
        "duration_bias": torch.from_numpy(scores.duration),
        "lengths": torch.tensor([LONG]),
    }
    found = recursion.run(recursion.Problem(inputs), torch.ones(1))
    true = tuple(found.gradients[name].squeeze(0).numpy() for name in ("cum_scores", "transition", "duration_bias"))
    exact = float(found.log_z[0])
    every = math.isqrt(LONG * LONG_K) + 1
    alphas, beta = forward(scores, every), backward(scores)
    print(f"T = {LONG}, K = {LONG_K}, C = {LONG_C}, a checkpoint every {every}: log Z = {exact:.6g}")
    print(f"{'largest alpha relative to its checkpoint':66s} {alphas.alpha.max():.0f}")
    largest = np.log(marginals(scores, alphas, beta, relative=False).max())
    print(f"{'largest of alpha + edge + beta - log Z':66s} {largest:.1e}")
    report("one exponential, float64, beta not normalised", scores, alphas, beta, true, relative=False)
    report("the relative form, float64, beta not normalised", scores, alphas, beta, true)
    short = forward(scores, every, np.float32)
    tell("log Z with norms in float32, absolute error", abs(short.log_z - exact))
    report("norms and log Z in float32, all else exact", scores, short, beta, true)
    single = backward(scores, np.float32)
    report("beta stored in float32, all else exact", scores, alphas, single, true)
    report("both", scores, short, single, true)
    low, high = (np.spacing(np.float32(size)) for size in (1.25e5, 2.5e5))
    print(f"{'spacing of float32 at 1.25e5 and 2.5e5':66s} {low:.1e}, {high:.1e}")
    p = marginals(scores, alphas, beta).sum(2)  # [T K C]
    by_place = p.astype(np.float32).cumsum(0, dtype=np.float32)[-1]
    tell("dduration_bias added up in float32, position by position", off(by_place.astype(np.float64), true[2]))


def report(name: str, scores: Scores, alphas: Alphas, beta: Array, true: Gradients, **how: Any) -> None:
    """Error of dcum and of the coverage."""
    p = marginals(scores, alphas, beta, **how)
    worst = float(np.abs(coverage(p) - 1).max())
    print(f"{name:66s} dcum {off(gradients(p)[0], true[0]):.1e}, coverage - 1 {worst:.1e}")


def memory() -> None:
    """Checkpoints and workspaces, by arithmetic."""
    for durations, labels in ((3, 2), (64, 24)):
        every = math.isqrt(LONG * durations - 1) + 1
        count = -(-LONG // every)
        print(
            f"T = {LONG}, K = {durations}: a checkpoint every {every} positions, {count} of them, "
            f"{count * durations * labels * 8} bytes in float64 at C = {labels}, where sqrt(T K) of them are "
            f"{every * durations * labels * 8}"
        )
    print(f"bytes of a [K C C] workspace, K = 64, C = 24: {64 * 24 * 24 * 4} in float32, {64 * 24 * 24 * 8} in float64")


def main() -> None:
    """Print one line a claim."""
    scores = draw(T, K, C, 0)
    formulas(scores)
    invariants(scores)
    clamps(scores)
    long()
    memory()


def tell(what: str, number: float) -> None:
    """One line."""
    print(f"{what:66s} {number:.1e}")


if __name__ == "__main__":
    main()
