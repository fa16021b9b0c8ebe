"""Semi-CRF: what rounding explains of a correct float32 kernel's error, at any length.

The kernel that is imitated adds up each segment's score in float32, takes exponentials, sums over labels and durations,
holds alpha and beta relative to norms that are exact (float64 or two floats), and multiplies alpha, score and beta into
probabilities. In units of the unit roundoff u:

- a segment's weight is off by the partial sums of its score and by its exponential: the square of its width is
  exp_ulps^2 + sum of squared partial sums, and equal scores err alike;
- an entry of transition or duration_bias is off by its own size and an exponential, the same wherever it is used;
- a node (alpha or beta at one t and c) is off by the running sums over K and C, an exponential, a logarithm, and by the
  sizes of its logarithm, relative to the largest label here (x) and at the position before (y), to which a kernel's
  numbers are relative until it has them all: K/3 + C/3 + 1 + exp_ulps^2 + log_ulps^2 + x^2 + y^2. A kernel in float64
  takes norms at checkpoints alone, max(256, K, sqrt(T K)) positions apart at most, and its numbers are as large as what
  the logarithm grows by in between;
- a probability is off by an exponential and by the size of its logarithm;
- sums over all positions are running sums in the accumulator, and what is returned is rounded to its format.

To first order an error e of a node moves log Z by P(node) e. Gradients move by covariances, which probes give: runs of
such a kernel with every result rounded (rounded.py), for JVP and HVP its tangents, too. Forward and backward err apart,
so a probability at t carries what both disagree about after t: a factor that all probabilities at t share. It grows
with the root of T where roundings are independent, and with T where each position loses the same bits of a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from gradoracle.properties.semicrf.readings.arithmetic import SEEDS
from gradoracle.properties.semicrf.readings.recursion import Array, Pass, Problem, Sequence, logs_of, run
from gradoracle.properties.semicrf.readings.rounded import FROM_ALPHA, WAYS, Rounded, probe
from torch import Tensor
from torch.nn.functional import avg_pool1d

from gradoracle.model.contract import Contract
from gradoracle.model.derivative import Derivative
from gradoracle.model.formats import FORMATS
from gradoracle.model.machine_code import side_by_side
from gradoracle.oracle.rounding.probes import Dice, mixed, rounding_errors
from gradoracle.oracle.rounding.reading import Budget
from gradoracle.oracle.rounding.rounding_model import SQUARABLE, half_spacing

FEW_PROBES = ((1 << 17, 8),)  # elements of the largest tensor, probes at most
_PROBE_ARRAYS = 24  # float64 numbers that a probe holds for each position and label
_PROBED_BITS = 30
PROBED_AT = 2.0**-_PROBED_BITS  # finer roundings are imitated with this unit, and what they do is scaled down
POOLED = 4  # positions on either side over which the probes' errors are pooled
LONGEST_CHUNK = 256  # positions between checkpoints where sqrt(T K) is less
_ALONG = ("cum_scores", "proj_start", "proj_end")
_TINY = 1e-300
MEETINGS = "meetings"
# Roundings of a node and the segment to it at the size of what grew since the norm. Of cum_scores: less that at s, with
# the start's score, that at t, with the end's, both together with a duration's: five. Of alpha: from norm to norm, with
# a score, its sum over durations, with a transition, its sum over labels: five. One more for what is moved from norm to
# norm, which may be as large as both. Correct float64 kernels stayed below 0.007 of the bound.
AT_HEIGHT = 6.0


def budgets(
    inputs: Mapping[str, Tensor],
    cotangent: Tensor,
    contract: Contract,
    derivative: Derivative,
    *,
    tangents: Mapping[str, Tensor] | None = None,
    stored: Mapping[str, str] | None = None,
    probes: int = 16,
    worst: bool = False,
    before: Tensor | None = None,
    norms: bool = True,
) -> dict[str, Budget]:
    """The budget of each tensor of a derivative by the engine's names: log_z and dcum_scores ..., jvp.log_z, hvp....

    Args:
        inputs: by the names of the definition.
        cotangent: [B] of log Z.
        contract: the precision contract; scores are added in its elementwise format.
        derivative: FORWARD and VJP give log_z, VJP the gradients too.
        tangents: by the name of the input; for JVP and HVP.
        stored: the format that each tensor is returned in; that of ``contract.elementwise`` where it is not named.
        probes: runs at most; tensors of 2^17 elements take 8.
        worst: whether to bound the error with every rounding at its worst, too. For JVP and HVP no bound is derived: it
            is eight times the largest of any probe, their rms and the independent standard deviation, so no less than
            the local rule allows. Correct kernels stayed below 0.23 of it (docs/background/budgets.md).
        before: [B C] probabilities of the labels before the first segment. Where they are given the budget has
            ``MEETINGS`` [B T+1 C], too: exp(alpha_t + beta_t - log Z) of a kernel's alpha and beta and of the true
            log Z. Only for VJP, with both projections and a cotangent of ones.
        norms: whether the kernel holds alpha and beta relative to norms; without them they are as large as log Z.

    Raises:
        ValueError: as ``semicrf_recursion.log_z``.
    """
    dual = derivative.takes_tangents
    problem = Problem(inputs, tangents if dual else None)
    interval = interval_of(problem, contract) if norms else problem.steps + 2
    noise = roundings(problem, contract)
    if interval > 1:  # what is relative to a norm that far away is as large as its logarithm
        heights = [_heights(problem.sequence(b), interval) for b in range(problem.batch)]
        height = float(np.square(np.concatenate([grown for grown, _ in heights])).mean())
        noise = noise + np.array([0.0, 0.0, height, height, AT_HEIGHT * max(largest for _, largest in heights)])
    largest = max(math.prod(shape) for shape in problem.shapes.values())
    count = min([probes, *(few for size, few in FEW_PROBES if largest >= size)])
    plain = run(Problem(inputs), cotangent)
    exact = run(problem, cotangent) if dual else plain
    truth = named(exact, derivative) | ({} if before is None else {MEETINGS: _met(plain, plain.log_z, before)})
    errors = {name: torch.zeros((count, *value.shape), dtype=torch.float64) for name, value in truth.items()}
    magnify = max(PROBED_AT / float(noise[0]), 1.0)
    bits = min(FORMATS[contract.elementwise].bits, _PROBED_BITS)

    def probed(number: int) -> dict[str, Tensor]:
        rounded = probe(
            problem, cotangent, mixed(number) % SEEDS, bits, contract.exp_ulps, contract.log_ulps, interval,
            gradients=derivative in (Derivative.VJP, Derivative.HVP),
            way=WAYS[number % len(WAYS)] if dual else FROM_ALPHA,
        )  # fmt: skip
        met = {} if before is None else {MEETINGS: _met(rounded, plain.log_z, before)}
        return named(rounded, derivative) | met

    for number, found in enumerate(side_by_side(probed, count, _PROBE_ARRAYS * 8 * problem.steps * problem.labels)):
        for name, value in found.items():
            off = torch.where(truth[name].isfinite(), value - truth[name], 0.0)
            errors[name][number] = off.nan_to_num(nan=0.0) / magnify
    shares = _shares(problem, plain, noise, contract)
    if dual:
        shares = _of_products(problem, plain, exact, shares)
    elif before is not None:
        shares[MEETINGS] = truth[MEETINGS] * shares["relative meetings"]
    bounds = _worst(problem, inputs, cotangent, noise, derivative, before) if worst and not dual else {}
    result = {}
    for name, value in truth.items():
        own = name.removeprefix("hvp.").removeprefix("d")
        scale = value if own == MEETINGS else plain.masses.get(own, torch.zeros_like(value))
        pooled = _pooled(errors[name], scale, along=own in (*_ALONG, MEETINGS))
        seen = torch.maximum(torch.maximum(pooled, shares[name]), errors[name].abs().amax(0))
        bound = bounds.get(name, 8.0 * seen) if worst else None
        format_ = (stored or {}).get(name, contract.elementwise)
        result[name] = returned(name, value, shares[name], errors[name], pooled, bound, format_)
    return result


def _heights(sequence: Sequence, interval: int) -> tuple[Array, float]:
    """How large a number relative to a norm is, by logarithms of alpha and cum_scores: [len+1] what they grow by over
    ``interval`` positions, and no less than how far any two lie apart that are no further away from one another.

    Where nothing leads, alpha is as large as before.
    """
    length = sequence.length
    logs = logs_of([x[: length + 1] for x in sequence.alpha[:2]]).max(-1, keepdims=True)
    cum = np.nan_to_num(sequence.own[0][: length + 1], posinf=0.0, neginf=0.0)
    held = np.maximum.accumulate(np.where(np.isfinite(logs[:, 0]), np.arange(length + 1), 0))
    both = [np.nan_to_num(logs[held], posinf=0.0, neginf=0.0), cum]  # [len+1 1], [len+1 C]
    before = np.maximum(np.arange(length + 1) - interval, 0)
    grown: Array = np.stack([np.abs(x - x[before]).max(-1) for x in both]).sum(0)
    largest = 0.0
    for at in range(0, length + 1, interval):  # two blocks hold any such pair
        largest = max(largest, sum(float(np.ptp(x[at : at + 2 * interval], axis=0).max()) for x in both))
    return grown, largest


def interval_of(problem: Problem, contract: Contract) -> int:
    """How many positions apart a kernel takes its norms: at each in float32, at checkpoints in float64."""
    if contract.elementwise != "float64":
        return 1
    return max(LONGEST_CHUNK, problem.longest, math.isqrt(problem.steps * problem.longest) + 1)


def roundings(problem: Problem, contract: Contract) -> Array:
    """The unit roundoff; squares in units of it of an exponential, a node and a probability; and a node at worst."""
    unit, terms = FORMATS[contract.elementwise].unit_roundoff, problem.longest + problem.labels
    exp, log = contract.exp_ulps, contract.log_ulps
    node = terms / 3 + 1 + exp**2 + log**2
    return np.array([unit, exp**2, node, exp**2 + 3, terms + 1 + exp + log])


def named(found: Pass | Rounded, derivative: Derivative) -> dict[str, Tensor]:
    """The tensors of a pass or of a probe by the engine's names."""
    if derivative is Derivative.JVP:
        return {"jvp.log_z": found.jvp}
    if derivative is Derivative.HVP:
        return {f"hvp.{name}": product for name, product in found.gradients.items()}
    gradients = found.gradients if derivative is Derivative.VJP else {}
    return {"log_z": found.log_z} | {f"d{name}": gradient for name, gradient in gradients.items()}


def _met(found: Pass | Rounded, log_z: Tensor, before: Tensor) -> Tensor:
    """[B T+1 C] exp(alpha_t + beta_t - log Z), with the true log Z, of a run with projections and a cotangent of ones.

    A run's gradients are of its own log Z, whose errors are those of its alpha and cancel with them; so they are
    multiplied by exp of what that log Z is off by. At 0 alpha is exact, and beta is off as the probabilities of the
    segments that begin there are, all together: what their labels before err by apart is one step's.
    """
    off = torch.where(log_z.isfinite(), found.log_z - log_z, 0.0).nan_to_num(nan=0.0).exp()[:, None, None]
    starts = found.gradients["proj_start"][:, 0].sum(-1)[:, None]
    first = before * torch.where(starts > 0, starts, 1.0)  # a sequence of no positions has no segment, and a boundary
    return torch.cat([first[:, None], found.gradients["proj_end"]], 1) * off


def _shares(problem: Problem, plain: Pass, noise: Array, contract: Contract) -> dict[str, Tensor]:
    """Standard deviations of log Z (``paths``: before its last logarithm) and of the gradients, all independent."""
    unit, exp, node, mass, _ = noise.tolist()
    partial = _partials(problem, plain)  # [B T C]
    ends = (unit**2 / 3) * plain.ends.square()  # [B T C], by the node at t + 1
    paths = (ends * (node + exp + partial)).sum((1, 2))
    found = {"log_z": (paths + (unit * contract.log_ulps) ** 2 / 3).sqrt(), "paths": paths.sqrt()}
    after = (
        (2 * (node + exp + partial) * ends).sum(-1).flip(1).cumsum(1).flip(1)[:, :, None]
    )  # [B T 1], of nodes beyond t
    rows = torch.cat([after, torch.zeros_like(after[:, :1])], 1)
    common = {"cum_scores": rows, "proj_start": rows[:, :-1], "proj_end": rows[:, 1:]}
    local = (unit**2 / 3) * (mass + problem.longest / 3 + 1)
    count, step_unit = float(problem.batch * problem.steps), FORMATS[contract.accumulate].unit_roundoff
    for name, size in plain.masses.items():
        if name in common:
            found[f"d{name}"] = size * (common[name] + local).sqrt()
        else:
            own = (unit**2 / 3) * mass * plain.squares[name]
            sums = (step_unit**2 / 3) * (count / 2 * plain.squares[name] + count / 3 * size.square())
            found[f"d{name}"] = (own + sums + size.square() * rows.mean()).sqrt()
    alone = (unit**2 / 3) * (2 * node + exp)  # of alpha and beta there; before and after it they err as log Z does
    found["relative meetings"] = (paths + alone).sqrt()[:, None, None]
    return found


def _partials(problem: Problem, plain: Pass) -> Tensor:
    """[B T C] squares of the partial sums of a segment's score, and of its transition, by the position before its end.

    On average over durations and labels before, taken as often as they are for a label among all segments: those of one
    position are not known apart, and sizes vary little with them. cum_scores' difference comes first, then duration,
    start and end; the transition is added to what comes before, a rounding of its size.
    """
    cum = torch.from_numpy(problem.scores["cum_scores"])
    start, end = (
        torch.from_numpy(problem.scores[n]) if n in problem.scores else None for n in ("proj_start", "proj_end")
    )
    dur, table = (
        torch.from_numpy(problem.scores[n]).nan_to_num(0.0, 0.0, 0.0) for n in ("duration_bias", problem.table)
    )
    often = plain.masses["duration_bias"] / plain.masses["duration_bias"].sum(0).clamp_min(_TINY)  # [K C]
    before = plain.masses[problem.table].reshape(-1, problem.labels, problem.labels)  # [J C C]
    squares = (before * table.reshape(before.shape).square()).sum((0, 1)) / before.sum((0, 1)).clamp_min(_TINY)
    found = squares.expand(cum[:, 1:].shape).clone()
    for k in range(1, min(problem.longest, problem.steps) + 1):
        score = cum[:, k:] - cum[:, :-k]  # of those that end at k .. T
        sizes = score.square()
        for more in (dur[k - 1], None if start is None else start[:, : start.shape[1] - k + 1],
                     None if end is None else end[:, k - 1 :]):  # fmt: skip
            if more is not None:
                score = score + more
                sizes = sizes + score.square()
        found[:, k - 1 :] += often[k - 1] * sizes.nan_to_num(0.0, 0.0, 0.0)
    return found


def _of_products(problem: Problem, plain: Pass, exact: Pass, shares: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of JVP and HVP: what moves a probability p moves p d alike, d the derivative of its logarithm.

    An estimate: one d for all elements, the root mean square of the products relative to the probabilities with that of
    the tangents, where each has its own. It is the least that sigma may be and nothing else: it has no sizes of
    alpha's and beta's tangents, nor what is lost alike everywhere. The probes commit every rounding and have both.
    """
    given = [tangent.square().mean() for tangent in map(torch.from_numpy, (problem.tangents or {}).values())]
    tangent = float(torch.stack(given).sum()) if given else 0.0
    products, masses = (sum(float(x.square().sum()) for x in each.values()) for each in (exact.gradients, plain.masses))
    size = math.sqrt(tangent + (products / masses if masses else 0.0))
    found = {f"hvp.{name}": shares[f"d{name}"] * size for name in exact.gradients}
    return found | {"jvp.log_z": shares["paths"] * size}


def _pooled(errors: Tensor, scale: Tensor, along: bool) -> Tensor:
    """The rms of the probes, and no less than their rms relative to ``scale`` over neighbouring positions says.

    Sixteen probes know a standard deviation to a sixth, four to a third, and among a million elements the least of such
    estimates is far off; the errors relative to the probability that moves vary little from one position to the next.
    """
    squares = errors.square().mean(0)
    weights = scale.square()
    if along:
        near = [avg_pool1d(x.transpose(1, 2), 2 * POOLED + 1, 1, POOLED).transpose(1, 2) for x in (squares, weights)]
    else:
        near = [x.mean().expand_as(x) for x in (squares, weights)]
    relative = torch.where(near[1] > 0, near[0] / near[1].clamp_min(_TINY), 0.0)
    return torch.maximum(squares, relative * weights).sqrt()


def returned(
    name: str, value: Tensor, independent: Tensor, errors: Tensor, pooled: Tensor, bound: Tensor | None, format_: str
) -> Budget:
    """What a number errs by once it is stored in a format: its own errors, one rounding, and what underflow loses.

    Args:
        name: draws the rounding in the probes.
        value: float64, of any shape.
        independent: the standard deviation before it is stored, if all roundings were independent.
        errors: [R, *shape] of the probes.
        pooled: the standard deviation that the probes show.
        bound: every rounding at its worst; None where it was not asked for.
        format_: what it is stored in.
    """
    finite = value.isfinite()
    size = torch.where(finite, value.abs(), 0.0)
    spacing = half_spacing(size, FORMATS[format_].unit_roundoff)
    errs = (errors != 0).any(0)  # also where the squares of errors underflow
    low = (size > 0) | errs | (pooled > 0) | (independent > 0)  # what is 0 in every kernel has no floor either
    stored = FORMATS[format_]
    least = stored.smallest_normal if stored.flushes else max(stored.smallest_subnormal, SQUARABLE)
    floor = low.double() * least
    if spacing.count_nonzero():  # equal numbers are returned alike, and opposite ones opposite
        factors, number = Dice(0, range(len(errors))).factors(mixed(*name.encode())), torch.where(finite, value, 0.0)
        width = torch.copysign(spacing, number)
        errors = rounding_errors(number, FORMATS[format_].bits, factors, width, errors)
    independent, pooled = ((x.square() + spacing.square() / 3).sqrt() for x in (independent, pooled))
    independent = torch.where(finite, independent, 0.0)
    sigma = torch.where(finite, torch.maximum(torch.maximum(independent, pooled), floor), 0.0)
    if bound is not None:
        if FORMATS[format_].bits < FORMATS["float32"].bits:  # by way of float32, where a number may become a tie
            bound = bound + half_spacing(size, FORMATS["float32"].unit_roundoff)
        bound = torch.where(finite, torch.maximum(bound + spacing + 4 * floor, sigma), 0.0)
    return Budget(value, sigma, independent, errors, bound, floor)


def _worst(
    problem: Problem,
    inputs: Mapping[str, Tensor],
    cotangent: Tensor,
    noise: Array,
    derivative: Derivative,
    before: Tensor | None,
) -> dict[str, Tensor]:
    """Bounds of log Z and the gradients, to first order, every rounding at its worst.

    With W the sum of the largest relative errors along a path, log Z moves by at most E[W], and the probability p of
    anything by at most p (E[W | it] + E[W]); the derivative of log p along those errors is E[W | it] - E[W]. A
    gradient is a sum of such p, each off by an exponential and by the sizes of the logarithms that it is added up from
    (``Sequence._loosen``), |log p| among them: the pass adds these up probability by probability, as the log of a sum
    does not tell them. Numbers relative to a checkpoint are larger by its height, which ``noise`` has for a node.
    """
    unit, exp = float(noise[0]), math.sqrt(float(noise[1]))
    slack = {n: torch.zeros_like(t, dtype=torch.float64) for n, t in inputs.items() if t.is_floating_point()}
    for name in (problem.table, "duration_bias"):
        slack[name] = (unit * (exp + inputs[name].double().abs())).nan_to_num(posinf=0.0)
    moved = run(Problem(inputs, slack), cotangent.abs(), np.array([unit, exp, float(noise[4])]))
    found = {"log_z": moved.jvp}
    if derivative is not Derivative.VJP:
        return found
    plain = run(Problem(inputs), cotangent.abs())
    count = float(problem.batch * problem.steps)
    for name, size in plain.masses.items():
        shared = name in (problem.table, "duration_bias")
        along = moved.jvp.max() if shared else moved.jvp[:, None, None]
        own = unit * (float(noise[4]) + 2 + (count if shared else problem.longest))
        found[f"d{name}"] = moved.masses[name].abs() + size * (2 * along + own)
    if before is not None:
        alone, all_ = moved.masses["proj_end"].abs(), moved.jvp[:, None, None]  # p |E[W | it] - E[W]|, E[W]
        at_first = all_.expand(-1, 1, alone.shape[2])  # what all labels before it err by, together
        found[MEETINGS] = torch.cat([at_first, alone + plain.masses["proj_end"] * all_], 1)
    return found
