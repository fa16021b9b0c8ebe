"""Properties of differences: central differences of the kernel's VJP converge to the true HVP, at second order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from gradoracle.properties.applicability import all_of, every_input_has_a_gradient, may_take_float64, small_enough
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import WIDEST_SENSITIVITY, Allowance, exactly, judge, not_checked
from gradoracle.check.evidence import Evidence, Tensors
from gradoracle.model.call_errors import Refused, Unavailable, Wrong
from gradoracle.model.case import Case
from gradoracle.model.contract import PRESETS
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import LOCAL_SIGMA, Finding, Outcome
from gradoracle.model.formats import is_in_range
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import property
from gradoracle.oracle.exact.definition import differentiating, transformed
from gradoracle.oracle.rounding.reading import Budget
from gradoracle.oracle.truth import arguments

TRUNCATION_OVER_ROUNDING = 10.0
SLOPES = (1.9, 2.1)
SMALLEST_EXPONENT = -40  # of a step
OWN_SLOPE = 0.04  # how far the definition's own order may be from 2 for a gradient to be counted


@dataclass(frozen=True)
class Difference:
    """One central difference: samples at both ends and what the definition says between them.

    ``x+-`` are ``x +- h t`` rounded to the dtype. All else is exact for these: the middle is ``(x+ + x-) / 2`` and the
    direction ``d = (x+ - x-) / 2h``, so that the representation of ``h t`` is accounted for to the last bit.
    """

    step: float
    forward: Sample
    backward: Sample
    middle: Sample
    direction: Mapping[str, Tensor]


@property(applies=all_of(small_enough, every_input_has_a_gradient), one_in=5, derivative=Derivative.VJP)
def hvp_finite_difference_convergence(evidence: Evidence) -> Iterator[Finding]:
    """HVP finite-difference convergence: central differences of the kernel's VJP obey error <= C h^2 + floor(h).

    Holds because: (G(x + hd) - G(x - hd)) / 2h = G'(x) d + h^2 G'''(y) d^3 / 6 for some y between the ends (Taylor).
    The definition's own difference between the same two ends, both rounded to the dtype, has that truncation and no
    other, so the kernel's is compared with it and not with a bound of the third derivative: what is left is floor(h),
    the budgets of both VJPs over 2h, added up. Each VJP is run anew at its perturbed point, so statistics are
    recomputed there. The step is the power of two at which C h^2, with C from the third derivative at the point (a JVP
    of the JVP of the HVP of the definition, in float64), and floor(h) are balanced: the difference is near the HVP, and
    shows more than rounding. Where 16 bits leave an element's limit too wide to decide, the slope of the errors on the
    truth decides: roundings average out in it.
    Catches: statistics frozen or cached at an earlier point, a VJP that is correct at one point by chance, a gradient
    of a similar function. vjp_matches_the_oracle sees errors at the point itself.
    Cannot catch: a VJP that is wrong by a constant, whose differences are correct; vjp_matches_the_oracle does.
    """
    if evidence.oracle.scalable(evidence.sample) is not None:
        raise Unavailable("the third derivative of this definition cannot be evaluated at these sizes")
    difference = _difference(evidence.sample, _balanced_step(evidence))
    step = difference.step
    ends = [
        evidence.variant(f"inputs + {step:g} tangents", lambda _: difference.forward),
        evidence.variant(f"inputs - {step:g} tangents", lambda _: difference.backward),
    ]
    up, down = (end.tensors(Derivative.VJP) for end in ends)
    for name in evidence.names(Derivative.VJP):
        if not (is_in_range(up[name]) and is_in_range(down[name])):
            shown = f"difference of {name}"
            yield not_checked(shown, "a VJP at a perturbed point is out of range (vjp_matches_the_oracle checks that)")
            continue
        yield evidence.explained(partial(_judged, ends, name, up[name], down[name], step))


def _judged(
    ends: Sequence[Evidence], name: str, up: Tensor, down: Tensor, step: float, algorithm: str | None
) -> Finding:
    """The kernel's difference of one gradient against the definition's, under an algorithm's budgets at both ends.

    Only by the local rule: errors at two ends that are near one another may add up or cancel, which has no null.
    """
    first, second = (end.allowance(Derivative.VJP, name, algorithm) for end in ends)
    above, below = (end.truths(Derivative.VJP)[name] for end in ends)
    got, truth = _quotient(up, down, step), _quotient(above.value, below.value, step)
    error, own = _quotient(above.error(up), below.error(down), step), ends[0]
    allowance = _of_difference(first, second, ~truth.isfinite(), step, own.continuous)
    shown, axes = f"difference of {name}", own.axes(name)
    found = judge(shown, got, truth, allowance, continuous=False, error=error, axes=axes, of=name)
    if own.continuous and found.rule == "worst case":
        found = replace(found, rule="local")
    too_wide = found.outcome is Outcome.NOT_CHECKED and found.sensitivity is not None
    return _slope(found, error, truth, allowance) if too_wide and own.continuous else found


def _of_float32(case: Case, kernel: Kernel) -> str | None:
    """One dtype's cases are enough for what is done in float64 anyway."""
    return None if case.dtype in ("float32", "float64") else "checked in float64, on the cases of float32"


@property(
    applies=all_of(_of_float32, small_enough, every_input_has_a_gradient, may_take_float64),
    one_in=4,
    derivative=Derivative.VJP,
)
def hvp_finite_difference_convergence_is_of_second_order(evidence: Evidence) -> Iterator[Finding]:
    """HVP finite-difference convergence in float64: where truncation exceeds ten times rounding, its order is 2.

    Holds because: the error of a central difference is h^2 G'''/6 plus terms in h^4. The sample is taken in float64, at
    three steps h, 2h and 4h, h being the smallest power of two at which the truncation of every gradient counted is ten
    times its rounding; log error against log h must have a slope in [1.9, 2.1]. That the terms in h^4 are small is seen
    on the definition, whose own differences must have the order 2 for a gradient to be counted.
    Catches: a backward that is not the gradient of a smooth function near the point: statistics kept from another
    point, single precision inside a float64 kernel, an approximation by pieces; what is below the budgets of narrower
    dtypes. vjp_matches_the_oracle sees most of it on float64 cases.
    Cannot catch: kernels that do not take float64 here; hvp_finite_difference_convergence looks at these.
    """
    if evidence.kernel.dtypes is None and "float64" not in evidence.oracle.family.dtypes:
        raise Unavailable("the kernel does not declare float64")
    wide = evidence.variant("float64", lambda sample: sample.map(_wide))
    try:
        wide.vjp()
    except (Refused, Wrong) as refusal:
        raise Unavailable(f"the kernel refuses float64 on this case: {refusal}") from None
    budgets = evidence.oracle.budgets(wide.sample, Derivative.VJP, PRESETS["float64"], probes=4)
    third = _third_derivative(evidence, arguments_of(wide.sample), wide.sample.tangents)
    names = evidence.names(Derivative.VJP)
    steps = {name: _resolving_step(budgets[name], bend) for name, bend in zip(names, third, strict=True)}
    smallest = max((step for step in steps.values() if step is not None), default=1.0)
    differences = [_difference(wide.sample, factor * smallest) for factor in (1, 2, 4)]
    own = _errors(evidence, differences, lambda sample: _gradients(evidence, sample))
    usable = [n for n, step in steps.items() if step is not None and abs(_order(own[n]) - 2) < OWN_SLOPE]
    if not usable:
        raise Unavailable("truncation does not exceed ten times rounding at any small step")
    errors = _errors(evidence, differences, lambda sample: evidence.subject.vjp(sample, evidence.blocks)[0])
    for name in usable:
        found = errors[name]
        slope = _order(found)
        wrong = not SLOPES[0] <= slope <= SLOPES[1]
        shown = ", ".join(f"{error:.3g}" for error in found)
        expected = f"expected {SLOPES[0]} to {SLOPES[1]}"
        message = f"the order is {slope:.3f}, {expected}: errors {shown} at h, 2h and 4h with h = {smallest:g}"
        curve = tuple((factor * smallest, error) for factor, error in zip((1, 2, 4), found, strict=True))
        yield replace(exactly(f"order of {name}", wrong, message, of=name), steps=curve)


def arguments_of(sample: Sample) -> dict[str, Tensor]:
    """The float inputs of a sample in float64 on the CPU, by name."""
    return {n: sample.inputs[n].detach().to("cpu", torch.float64) for n in sample.tangents}


def _difference(sample: Sample, step: float) -> Difference:
    """Both ends of ``x +- h t`` as the dtype holds them, and the exact middle and direction between them."""
    forward, backward, middle, direction = {}, {}, {}, {}
    for name, tangent in sample.tangents.items():
        primal = sample.inputs[name].detach()
        shift = tangent.to(torch.float64) * step
        forward[name] = (primal.to(torch.float64) + shift).to(primal.dtype)
        backward[name] = (primal.to(torch.float64) - shift).to(primal.dtype)
        high, low = (end[name].to("cpu", torch.float64) for end in (forward, backward))
        if not (is_in_range(forward[name]) and is_in_range(backward[name])):
            raise Unavailable("a perturbed point overflows")
        middle[name], direction[name] = (high + low) / 2, (high - low) / (2 * step)
    return Difference(
        step, sample.with_inputs(**forward), sample.with_inputs(**backward),
        replace(sample, inputs={**sample.inputs, **middle}, tangents=direction), direction,
    )  # fmt: skip


def _hvp(evidence: Evidence, difference: Difference) -> Tensors:
    """The definition's HVP at the middle along the direction, in float64, named as the gradients that it belongs to."""
    graph = evidence.oracle.graph(difference.middle, Derivative.HVP)
    found = graph(*arguments(evidence.oracle.family, difference.middle, Derivative.HVP))
    return dict(zip(evidence.names(Derivative.VJP), found, strict=True))


def _third_derivative(
    evidence: Evidence, point: Mapping[str, Tensor], direction: Mapping[str, Tensor]
) -> tuple[Tensor, ...]:
    """The third derivative of the definition's gradients at a point along a direction, in float64."""
    sample = evidence.sample
    family, order = evidence.oracle.family, [*sample.inputs]
    cotangents = tuple(g.detach().to("cpu", torch.float64) for g in sample.cotangents.values())
    names = [*sample.tangents]
    steps = {name: direction[name].to("cpu", torch.float64) for name in names}

    def outputs(*floats: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(names, floats, strict=True))
        inputs = {name: given.get(name, sample.inputs[name].detach().cpu()) for name in order}
        return transformed(family, inputs, sample.options)

    def gradients(s: Tensor) -> tuple[Tensor, ...]:
        here = tuple(point[name] + s * steps[name] for name in names)
        return tuple(torch.func.vjp(outputs, *here)[1](cotangents))

    derivative: Callable[[Tensor], tuple[Tensor, ...]] = gradients
    for _ in range(3):
        derivative = _along(derivative)
    with differentiating(family):
        return derivative(torch.zeros((), dtype=torch.float64))


def _along(function: Callable[[Tensor], tuple[Tensor, ...]]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """The derivative of a function of one number."""

    def derivative(s: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = torch.func.jvp(function, (s,), (torch.ones_like(s),))[1]
        return found

    return derivative


def _balanced_step(evidence: Evidence) -> float:
    """The power of two at which C h^2 + floor(h) is least, h^3 = floor / 2C, the middle one of all gradients.

    At most so large that h t has the size of x, or of 1 where x is smaller: beyond it the interval is no neighbourhood.
    """
    sample = evidence.sample
    bends = _third_derivative(evidence, arguments_of(sample), sample.tangents)
    sizes = [(_rms(sample.inputs[name]), _rms(tangent)) for name, tangent in sample.tangents.items()]
    largest = min((math.floor(math.log2(max(1.0, x) / t)) for x, t in sizes if t > 0 and math.isfinite(x)), default=0)
    exponents = []
    for name, bend in zip(evidence.names(Derivative.VJP), bends, strict=True):
        floor = LOCAL_SIGMA * _rms(_sigma(evidence, name)) / math.sqrt(2.0)
        curvature = _rms(bend) / 6
        if floor > 0 and curvature > 0 and math.isfinite(floor) and math.isfinite(curvature):
            exponents.append((math.log2(floor) - math.log2(2 * curvature)) / 3)
    balanced = round(sorted(exponents)[len(exponents) // 2]) if exponents else largest
    if balanced < SMALLEST_EXPONENT:
        raise Unavailable("no step keeps both truncation and rounding small")
    return 2.0 ** min(balanced, largest)


def _resolving_step(budget: Budget, bend: Tensor) -> float | None:
    """The smallest power of two at which truncation is ten times rounding; None where there is none."""
    rounding, curvature = LOCAL_SIGMA * _rms(budget.sigma) / math.sqrt(2.0), _rms(bend) / 6
    if not (curvature > 0 and math.isfinite(curvature) and math.isfinite(rounding)):
        return None
    least = (TRUNCATION_OVER_ROUNDING * rounding / curvature) ** (1 / 3)
    exponent = max(SMALLEST_EXPONENT, math.ceil(math.log2(least))) if least > 0 else SMALLEST_EXPONENT
    return 2.0**exponent if exponent <= 0 else None


def _gradients(evidence: Evidence, sample: Sample) -> Tensors:
    """The definition's gradients at a sample, in float64."""
    found = evidence.oracle.graph(sample, Derivative.VJP)(*arguments(evidence.oracle.family, sample, Derivative.VJP))
    names = evidence.names(Derivative.VJP)
    return dict(zip(names, found[-len(names) :], strict=True))


def _errors(
    evidence: Evidence, differences: Sequence[Difference], gradients: Callable[[Sample], Tensors]
) -> dict[str, list[float]]:
    """The norm of each gradient's difference quotient less the definition's HVP, for each of some steps."""
    errors: dict[str, list[float]] = {name: [] for name in evidence.names(Derivative.VJP)}
    for difference in differences:
        up, down, true = gradients(difference.forward), gradients(difference.backward), _hvp(evidence, difference)
        for name, found in errors.items():
            found.append(float((_quotient(up[name], down[name], difference.step) - true[name]).norm()))
    return errors


def _order(errors: Sequence[float]) -> float:
    """The slope of log error over two doublings of the step; NaN where an error is 0 or no number."""
    first, last = errors[0], errors[-1]
    return (math.log2(last) - math.log2(first)) / 2 if 0 < first < math.inf and 0 < last < math.inf else math.nan


def _slope(found: Finding, error: Tensor, truth: Tensor, allowance: Allowance) -> Finding:
    """Bias on a difference: the slope of its errors on the truth.

    Weights are 1/sigma^2. The limit is the larger of what the probes show and of independence.
    """
    own = (allowance.sigma > 0) & error.isfinite() & truth.isfinite()
    for excused in (allowance.overflow, allowance.undecided):
        own = own if excused is None else own & ~excused
    sigma, true = allowance.sigma[own], truth[own]
    weight = true / sigma.square()
    bottom = float((weight * true).sum())
    if not bottom > 0:
        return found
    nulls = (allowance.errors[:, own] * weight).sum(1) / bottom
    limit = LOCAL_SIGMA * max(float(nulls.square().mean().sqrt()), bottom**-0.5)
    if allowance.radius is not None:
        limit += float((weight.abs() * allowance.radius[own]).sum()) / bottom
    if limit > WIDEST_SENSITIVITY:
        return found
    slope = float((weight * error[own]).sum()) / bottom
    ratio = abs(slope) / limit
    outcome = Outcome.VIOLATED if ratio > 1 else Outcome.HOLDS
    message = f"the error is {slope:+.2e} of the truth throughout; rounding explains {limit:.1e}"
    return replace(
        found, outcome=outcome, rule="bias", error=ratio, sensitivity=limit, message=message if ratio > 1 else ""
    )


def _of_difference(one: Allowance, other: Allowance, unknown: Tensor, step: float, continuous: bool) -> Allowance:
    """What both ends allow of a central difference, as a limit that is not to be multiplied again.

    Limits and standard deviations are added, not their squares: the two points are near one another, so that a kernel
    may commit much the same roundings at both, of either sign, and nothing makes their errors independent.

    Args:
        one, other: of the two ends.
        unknown: where the truth of the difference is not known.
        step: h.
        continuous: whether the local rule decides; else the worst case.
    """
    sigma = (one.sigma + other.sigma) / (2 * step)
    worst = LOCAL_SIGMA * sigma
    if not continuous and one.worst is not None and other.worst is not None:
        worst = (one.worst + other.worst) / (2 * step)
    floor = radius = overflow = None
    if one.floor is not None and other.floor is not None:
        floor = (one.floor + other.floor) / (2 * step)
    if one.radius is not None and other.radius is not None:
        radius = (one.radius + other.radius) / (2 * step)
    for each in (one, other):
        if each.overflow is not None:
            overflow = each.overflow if overflow is None else overflow | each.overflow
        if each.undecided is not None:
            unknown = unknown | each.undecided
    errors = (one.errors - other.errors) / (2 * step)
    return Allowance(sigma, errors, worst, floor, overflow, radius, unknown)


def _quotient(up: Tensor, down: Tensor, step: float) -> Tensor:
    return (up.detach().to("cpu", torch.float64) - down.detach().to("cpu", torch.float64)) / (2 * step)


def _sigma(evidence: Evidence, name: str) -> Tensor:
    """A gradient's sigma under the first algorithm: what a step is chosen by."""
    return evidence.allowance(Derivative.VJP, name, evidence.algorithms(Derivative.VJP)[0]).sigma


def _rms(tensor: Tensor) -> float:
    """The root of the mean square of all elements."""
    return float(tensor.detach().to(torch.float64).square().mean().sqrt()) if tensor.numel() else 0.0


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float64) if tensor.is_floating_point() else tensor
