"""Laws of differences: central differences of the kernel's VJP converge to the definition's HVP, at second order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from gradoracle.properties.applicability import all_of, every_input_has_a_gradient, may_take_float64, small_enough
from torch import Tensor

from gradoracle.case import Sample
from gradoracle.contract import PRESETS
from gradoracle.derivative import Derivative, as_tuple
from gradoracle.evidence import Evidence
from gradoracle.finding import Finding
from gradoracle.oracle.rounding import Budget
from gradoracle.oracle.truth import arguments
from gradoracle.property import law
from gradoracle.rules import LOCAL_SIGMA, Allowance, exactly, judge
from gradoracle.subject import Refused, Tensors, Unavailable, Wrong

PLACES = (-1.0, -0.5, 0.0, 0.5, 1.0)  # of the interval at which the third derivative is evaluated
TRUNCATION_OVER_ROUNDING = 10.0
SLOPES = (1.9, 2.1)
SMALLEST_EXPONENT = -40  # of a step
STEADY = 0.05  # of the third derivative: moves a slope over two octaves by less than 0.04


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


@law(applies=all_of(small_enough, every_input_has_a_gradient), one_in=5)
def hvp_finite_difference_convergence(evidence: Evidence) -> Iterator[Finding]:
    """HVP finite-difference convergence: central differences of the kernel's VJP obey error <= C h^2 + floor(h).

    Each VJP is run anew at its perturbed point, so statistics are recomputed there. The error is that against the HVP
    of the definition along the step that was really taken, both ends rounded to the dtype. C is the third derivative of
    the gradient along it over six (a JVP of the JVP of the HVP of the definition, in float64), the largest over the
    interval; floor(h) is the budget of both VJPs over 2h. The step is the power of two at which the two are balanced.
    Holds because: (G(x + hd) - G(x - hd)) / 2h = G'(x) d + h^2 G'''(y) d^3 / 6 for some y between the ends (Taylor).
    Catches: statistics frozen or cached at an earlier point, a VJP that is right at one point by chance, a gradient
    of another function near by. vjp_matches_the_oracle sees what is wrong at the point itself.
    Cannot catch: a VJP that is wrong by a constant, whose differences are right; vjp_matches_the_oracle does.
    """
    step = _balanced_step(evidence)
    difference = _difference(evidence.sample, step)
    ends = [
        evidence.variant(f"inputs + {step:g} tangents", lambda _: difference.forward),
        evidence.variant(f"inputs - {step:g} tangents", lambda _: difference.backward),
    ]
    true, bounds = _hvp(evidence, difference), _truncation(evidence, difference)
    up, down = (end.tensors(Derivative.VJP) for end in ends)
    for (name, hvp), bound in zip(true.items(), bounds, strict=True):
        first, second = (end.allowance(Derivative.VJP, name) for end in ends)
        allowance = _of_difference(first, second, bound, step, evidence.continuous)
        # only the local rule: the truncation inside the limit is no rounding, and has no null for bias or spread
        found = judge(
            f"difference of {name}",
            _quotient(up[name], down[name], step),
            hvp,
            allowance,
            continuous=False,
            axes=evidence.axes(name),
        )
        yield replace(found, rule="local") if evidence.continuous and found.rule == "worst case" else found


@law(applies=all_of(small_enough, every_input_has_a_gradient, may_take_float64), one_in=5)
def hvp_finite_difference_convergence_is_of_second_order(evidence: Evidence) -> Iterator[Finding]:
    """HVP finite-difference convergence in float64: where truncation exceeds ten times rounding, its order is 2.

    The sample is taken in float64, at three steps h, 2h and 4h, h being the smallest power of two at which the
    truncation of every gradient counted is ten times its rounding; log error against log h has a slope in [1.9, 2.1].
    Holds because: the error of a central difference is h^2 G'''/6 plus terms in h^4, which are small where the
    third derivative hardly varies over the interval, as the definition tells.
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
        raise Unavailable(f"the kernel does not take float64 here: {refusal}") from None
    budgets = evidence.oracle.budgets(wide.sample, Derivative.VJP, PRESETS["float64"], probes=4)
    third = _third_derivative(evidence, arguments_of(wide.sample), wide.sample.tangents, 0.0)
    names = evidence.names(Derivative.VJP)
    steps = {name: _resolving_step(budgets[name], bend) for name, bend in zip(names, third, strict=True)}
    smallest = max((step for step in steps.values() if step is not None), default=1.0)
    steady = _steady(evidence, wide.sample, 4 * smallest)
    usable = [name for name, step in steps.items() if step is not None and name in steady]
    if not usable:
        raise Unavailable("at no small step does truncation exceed ten times rounding")
    errors: dict[str, list[float]] = {name: [] for name in usable}
    for step in (smallest, 2 * smallest, 4 * smallest):
        difference = _difference(wide.sample, step)
        ends = [evidence.subject.vjp(end, evidence.blocks)[0] for end in (difference.forward, difference.backward)]
        true = _hvp(evidence, difference)
        for name, found in errors.items():
            found.append(float((_quotient(ends[0][name], ends[1][name], step) - true[name]).norm()))
    for name, found in errors.items():
        slope = (math.log2(found[2]) - math.log2(found[0])) / 2 if min(found) > 0 else math.nan
        wrong = not SLOPES[0] <= slope <= SLOPES[1]
        shown = ", ".join(f"{error:.3g}" for error in found)
        wanted = f"wanted {SLOPES[0]} to {SLOPES[1]}"
        message = f"the order is {slope:.3f}, {wanted}: errors {shown} at h, 2h and 4h with h = {smallest:g}"
        yield exactly(f"order of {name}", wrong, message)


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
        if not (high.isfinite().all() and low.isfinite().all()):
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


def _truncation(evidence: Evidence, difference: Difference) -> list[Tensor]:
    """C h^2: the largest third derivative over the interval over six, per element of each gradient.

    Between the places the third derivative is taken to vary by no more than it does from one place to the next.
    """
    middle = {name: difference.middle.inputs[name] for name in difference.direction}
    scaled = {name: difference.step * t for name, t in difference.direction.items()}
    values = [_third_derivative(evidence, middle, scaled, place) for place in PLACES]
    bounds = []
    for several in zip(*values, strict=True):
        stack = torch.stack(several)
        largest = stack.abs().amax(0) + stack.diff(dim=0).abs().amax(0)
        bounds.append(largest / (6 * difference.step))
    return bounds


def _third_derivative(
    evidence: Evidence, point: Mapping[str, Tensor], direction: Mapping[str, Tensor], place: float
) -> tuple[Tensor, ...]:
    """The third derivative of the definition's gradients along ``point + s direction`` at ``s = place``, in float64."""
    sample = evidence.sample
    family, order = evidence.oracle.family, [*sample.inputs]
    cotangents = tuple(g.detach().to("cpu", torch.float64) for g in sample.cotangents.values())
    names = [*sample.tangents]
    steps = {name: direction[name].to("cpu", torch.float64) for name in names}

    def outputs(*floats: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(names, floats, strict=True))
        inputs = {name: given.get(name, sample.inputs[name].detach().cpu()) for name in order}
        keyword = {name: t for name, t in inputs.items() if family.signature.input(name).keyword}
        positional = [t for name, t in inputs.items() if name not in keyword]
        return as_tuple(family.definition(*positional, **keyword, **sample.options))

    def gradients(s: Tensor) -> tuple[Tensor, ...]:
        here = tuple(point[name] + s * steps[name] for name in names)
        return tuple(torch.func.vjp(outputs, *here)[1](cotangents))

    derivative: Callable[[Tensor], tuple[Tensor, ...]] = gradients
    for _ in range(3):
        derivative = _along(derivative)
    return derivative(torch.tensor(place, dtype=torch.float64))


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
    bends = _third_derivative(evidence, arguments_of(sample), sample.tangents, 0.0)
    sizes = [(_rms(sample.inputs[name]), _rms(tangent)) for name, tangent in sample.tangents.items()]
    largest = min((math.floor(math.log2(max(1.0, x) / t)) for x, t in sizes if t > 0 and math.isfinite(x)), default=0)
    exponents = []
    for name, bend in zip(evidence.names(Derivative.VJP), bends, strict=True):
        floor = LOCAL_SIGMA * _rms(evidence.allowance(Derivative.VJP, name).sigma) / math.sqrt(2.0)
        curvature = _rms(bend) / 6
        if floor > 0 and curvature > 0 and math.isfinite(floor) and math.isfinite(curvature):
            exponents.append((math.log2(floor) - math.log2(2 * curvature)) / 3)
    balanced = round(sorted(exponents)[len(exponents) // 2]) if exponents else largest
    if balanced < SMALLEST_EXPONENT:
        raise Unavailable("no step is small enough for truncation and large enough for rounding")
    return 2.0 ** min(balanced, largest)


def _resolving_step(budget: Budget, bend: Tensor) -> float | None:
    """The smallest power of two at which truncation is ten times rounding; None where there is none."""
    rounding, curvature = LOCAL_SIGMA * _rms(budget.sigma) / math.sqrt(2.0), _rms(bend) / 6
    if not (curvature > 0 and math.isfinite(curvature) and math.isfinite(rounding)):
        return None
    least = (TRUNCATION_OVER_ROUNDING * rounding / curvature) ** (1 / 3)
    exponent = max(SMALLEST_EXPONENT, math.ceil(math.log2(least))) if least > 0 else SMALLEST_EXPONENT
    return 2.0**exponent if exponent <= 0 else None


def _steady(evidence: Evidence, sample: Sample, step: float) -> set[str]:
    """The gradients whose third derivative varies by less than ``STEADY`` over the interval of a step: terms in h^4."""
    scaled = {name: step * t.to(torch.float64) for name, t in sample.tangents.items()}
    low, middle, high = (_third_derivative(evidence, arguments_of(sample), scaled, s) for s in (-1.0, 0.0, 1.0))
    names = evidence.names(Derivative.VJP)
    parts = zip(names, low, middle, high, strict=True)
    return {name for name, a, b, c in parts if max(_rms(a - b), _rms(c - b)) <= STEADY * _rms(b)}


def _of_difference(one: Allowance, other: Allowance, bound: Tensor, step: float, continuous: bool) -> Allowance:
    """floor(h) and C h^2 of a central difference, as a limit that is not to be multiplied again."""
    sigma = torch.hypot(one.sigma, other.sigma) / (2 * step)
    worst = LOCAL_SIGMA * sigma
    if not continuous and one.worst is not None and other.worst is not None:
        worst = (one.worst + other.worst) / (2 * step)
    floor = None
    if one.floor is not None and other.floor is not None:
        floor = torch.hypot(one.floor, other.floor) / (2 * step)
    overflow = one.overflow
    if other.overflow is not None:
        overflow = other.overflow if overflow is None else overflow | other.overflow
    return Allowance(sigma, one.errors, worst, floor, overflow, radius=bound)


def _quotient(up: Tensor, down: Tensor, step: float) -> Tensor:
    return (up.detach().to("cpu", torch.float64) - down.detach().to("cpu", torch.float64)) / (2 * step)


def _rms(tensor: Tensor) -> float:
    """The root of the mean square of all elements."""
    return float(tensor.detach().to(torch.float64).square().mean().sqrt()) if tensor.numel() else 0.0


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float64) if tensor.is_floating_point() else tensor
