"""Properties of SDPA's explicit entry points: the HVP by central differences, and agreement with autograd."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from gradoracle.properties.agreement import differ
from gradoracle.properties.applicability import all_of, small_enough
from torch import Tensor

from gradoracle.check.acceptance import exactly, judge, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.call_errors import Unavailable
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative, Program, program
from gradoracle.model.finding import LOCAL_SIGMA, Finding, Outcome
from gradoracle.model.formats import FORMATS
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import property

JVP, VJP, HVP = Derivative.JVP, Derivative.VJP, Derivative.HVP
STEPS = {"float32": (2.0**-5, 2.0**-6), "float64": (2.0**-9, 2.0**-10)}  # truncation well above rounding
MOST_SCORES = 60_000  # the property runs eight backward passes and traces two of them
NAMES = ("hvp.q", "hvp.k", "hvp.v")
ORDER = (1.9, 2.1)  # of convergence, where only the leading term of the truncation is left
ASYMPTOTIC = (1.99, 2.01)  # the order that the definition itself must show there
ABOVE_ROUNDING = 10.0


def _wide(case: Case, kernel: Kernel) -> str | None:
    if case.dtype not in ("float32", "float64"):
        return "in 16 bits no step is suitable, since the perturbed inputs are rounded to the dtype"
    dims = case.dims
    scores = dims["B"] * dims["H"] * dims["T"] * dims["M"]
    return None if scores <= MOST_SCORES else f"the case has more than {MOST_SCORES} scores"


@property(needs=(HVP,), extras=("hvp_central_difference",), applies=_wide, one_in=3, rank=2)
def the_central_difference_converges_to_the_hvp(evidence: Evidence) -> Iterator[Finding]:
    """The kernel's central difference of VJPs at step h is the HVP to within its truncation C h^2 and rounding / h.

    Holds because: the odd terms of the Taylor series remain; the truncation at h is that of the definition, evaluated
    in float64 with steps of its own, and rounding is the budget of the whole difference, perturbed inputs included. In
    float64, where the truncation is 10 times the rounding, the order of convergence itself is measured.
    Catches: a one-sided difference, m and l kept from the middle, a tangent that is dropped or halved, a wrong 2 h.
    Cannot catch: errors that VJP and HVP share; hvp_matches_the_oracle does.
    """
    sample, truths = evidence.sample, evidence.truths(HVP)
    args = [*sample.inputs.values(), *sample.tangents.values(), *sample.cotangents.values()]
    errors: dict[str, list[tuple[float, float, float]]] = {name: [] for name in NAMES}
    for step in STEPS[evidence.case.dtype]:
        defined = evidence.define(f"central difference {step}", _difference(evidence, step), args)
        tangents, cotangents = tuple(sample.tangents.values()), tuple(sample.cotangents.values())
        shapes = evidence.shapes(HVP)
        got = evidence.entry("hvp_central_difference", shapes, tangents, cotangents, step, key=f" {step}")
        for (name, tensor), (truth, allowance) in zip(got.items(), defined, strict=True):
            true = truths[name]
            truncation = (truth.value - true.value).abs()  # C h^2 and beyond
            held = 4 * FORMATS["float64"].unit_roundoff * torch.maximum(truth.value.abs(), true.value.abs())
            radius = truncation + held + true.radius + truth.radius  # held: what the two truths are rounded by
            against_hvp = judge(
                f"{name} by a step of {step:g}",
                tensor,
                true.value,
                replace(allowance, radius=radius, worst=LOCAL_SIGMA * allowance.sigma),
                continuous=False,  # the truncation is no rounding: it has a slope
                error=true.error(tensor),
                axes=evidence.axes(name),
                of=name,
            )
            if against_hvp.outcome is not Outcome.NOT_CHECKED:  # where the truncation is not all there is
                yield replace(against_hvp, error_in_sigma=0.0)  # its budget is the truncation
            yield judge(
                f"{name} by a step of {step:g}, truncation taken off",
                tensor,
                truth.value,
                allowance,
                continuous=evidence.continuous,
                error=truth.error(tensor),
                scale=torch.maximum(truth.value.abs(), true.value.abs()),
                axes=evidence.axes(name),
                of=name,
            )
            rounding = float(allowance.sigma.norm())
            errors[name].append((float(true.error(tensor).norm()), float(truncation.norm()), rounding))
    if evidence.case.dtype == "float64":
        yield from _orders(errors)


def _difference(evidence: Evidence, step: float) -> Program:
    """The central difference of the definition's VJP as a program of (primals, tangents, cotangents)."""
    definition, options = evidence.oracle.family.definition, evidence.sample.options
    vjp = program(definition, VJP, 3, options=options)

    def difference(*args: Tensor) -> tuple[Tensor, ...]:
        primals, tangents, cotangent = args[:3], args[3:6], args[6]
        ahead = vjp(*(x + step * t for x, t in zip(primals, tangents, strict=True)), cotangent)[1:]
        behind = vjp(*(x - step * t for x, t in zip(primals, tangents, strict=True)), cotangent)[1:]
        return tuple((a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True))

    return difference


def _orders(errors: dict[str, list[tuple[float, float, float]]]) -> Iterator[Finding]:
    """The order of convergence between the two steps, where the definition's own truncation shows it."""
    for name, ((error, truncation, _), (halved, truncation_halved, rounding)) in errors.items():
        label = f"order of {name}"
        if truncation_halved <= ABOVE_ROUNDING * rounding:
            continue
        expected = math.log2(truncation / truncation_halved)
        if not ASYMPTOTIC[0] <= expected <= ASYMPTOTIC[1]:
            continue  # more than the leading term of the truncation is left: the steps are too long for this sample
        order = math.log2(error / halved) if error > 0 and halved > 0 else 0.0
        wrong = not ORDER[0] <= order <= ORDER[1]
        yield exactly(
            label, wrong, f"the error falls with order {order:.3f}, expected {ORDER[0]} to {ORDER[1]}", of=name
        )


def _explicit(case: Case, kernel: Kernel) -> str | None:
    if not kernel.deterministic:
        return "the kernel does not claim determinism"
    return None if kernel.jvp and kernel.hvp else "the kernel has no explicit JVP and HVP"


@property(needs=(JVP, HVP), applies=all_of(small_enough, _explicit), one_in=4, rank=1)
def explicit_entry_points_agree_with_autograd(evidence: Evidence) -> Iterator[Finding]:
    """The explicit JVP and HVP return the same bits as forward mode and double backward.

    Holds because: they run the same passes on the same values.
    Catches: an entry point, or an autograd rule, that passes arguments in another order or drops an option.
    Cannot catch: errors that both share; jvp_matches_the_oracle and hvp_matches_the_oracle do.
    """
    subject = evidence.subject.labelled("through autograd", recorded=True).by_autograd(JVP, HVP)
    through_autograd = Evidence(evidence.case, evidence.sample, subject, evidence.oracle, evidence.blocks)
    for derivative in (HVP, JVP):
        explicit = evidence.tensors(derivative)
        try:
            other = through_autograd.tensors(derivative)
        except Unavailable as reason:  # PyTorch gives an expanded tensor no tangent
            yield not_checked(f"{derivative.value}, explicit and autograd", str(reason))
            continue
        for name, tensor in explicit.items():
            wrong = differ(tensor, other[name]).cpu()
            yield exactly(f"{name}, explicit and autograd", wrong, "the bits differ", elements=wrong.numel(), of=name)


DIFFERENCES = (the_central_difference_converges_to_the_hvp, explicit_entry_points_agree_with_autograd)
