"""Properties of linear maps: J^T is linear and the transpose of J, and the Hessian is its own transpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from gradoracle.properties.agreement import differing, within_both
from gradoracle.properties.applicability import all_of, every_input_has_a_gradient, small_enough
from gradoracle.properties.exactness import has_subnormals
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model import hashing, layouts
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.formats import FORMATS, is_in_range
from gradoracle.model.property import property

MARGIN = 1.0 / 16  # a kernel may meet underflow at values that much above where the definition does


@property(applies=all_of(small_enough, every_input_has_a_gradient), one_in=4, derivative=Derivative.JVP)
def vjp_and_jvp_are_adjoint(evidence: Evidence) -> Iterator[Finding]:
    """<g, J t> = <J^T g, t>: the kernel's JVP and VJP are transposes of one another.

    Holds because: both are the same Jacobian, applied from the right and from the left. The budget carries the errors
    that the contract allows each of them through both inner products.
    Catches: a VJP and a JVP that belong to different functions: statistics frozen in one of them, a term dropped, a
    scale. jvp_matches_the_oracle and vjp_matches_the_oracle see it too, and say which of the two is wrong.
    Cannot catch: one wrong Jacobian in both, or errors that are orthogonal to g and t; those two properties do.
    """
    parts = [(evidence, Derivative.JVP, name) for name in evidence.names(Derivative.JVP)]
    parts += [(evidence, Derivative.VJP, name) for name in evidence.names(Derivative.VJP)]
    outputs, sample = len(evidence.names(Derivative.JVP)), evidence.sample
    weights = [*sample.cotangents.values(), *(-t.to(torch.float64) for t in sample.tangents.values())]
    yield _inner_products(evidence, "<g, J t> - <J^T g, t>", parts, weights, outputs)


@property(applies=all_of(small_enough, every_input_has_a_gradient), one_in=3, derivative=Derivative.HVP)
def hvp_is_symmetric(evidence: Evidence) -> Iterator[Finding]:
    """<u, H t> = <t, H u> for two tangents t and u.

    Holds because: the Hessian of <g, f> is symmetric, second derivatives commute. The second tangent u is the first
    with its elements reversed and hashed signs, so that the two are not parallel.
    Catches: an HVP that treats inputs unequally: a cross term between two inputs that is missing on one side, a
    statistic frozen in one of them. hvp_matches_the_oracle sees it too.
    Cannot catch: a symmetric error, such as a wrong scale of the whole; hvp_matches_the_oracle does.
    """
    tangents = evidence.sample.tangents
    others = {name: _other(tangent, name) for name, tangent in tangents.items()}
    reversed_ = evidence.variant("other tangents", lambda sample: sample.with_tangents(**others))
    parts = [(evidence, Derivative.HVP, name) for name in evidence.names(Derivative.HVP)]
    parts += [(reversed_, Derivative.HVP, name) for name in evidence.names(Derivative.HVP)]
    weights = [*others.values(), *(-tangent.to(torch.float64) for tangent in tangents.values())]
    yield _inner_products(evidence, "<u, H t> - <t, H u>", parts, weights, len(others))


@property(applies=small_enough, one_in=5, derivative=Derivative.VJP)
def vjp_is_linear_in_the_cotangent(evidence: Evidence) -> Iterator[Finding]:
    """J^T (2 g) = 2 J^T g, to the last bit where determinism is claimed and nothing underflows.

    Holds because: the VJP is linear in its cotangent, and multiplying by two is exact in binary floating point, so
    every rounding of the second run is twice that of the first. Elements whose budget has an underflow part already at
    a sixteenth of g may differ within the rounding of both runs; so may all where no determinism is claimed, or where a
    16-bit operand is subnormal.
    Catches: a cotangent that is clamped, squared, cached or ignored, a constant or left-over memory added in backward,
    a threshold on gradients. vjp_matches_the_oracle sees those that are larger than rounding.
    Cannot catch: any wrong map that is linear; vjp_matches_the_oracle does.
    """
    twice = {name: layouts.scaled(g, 2.0) for name, g in evidence.sample.cotangents.items()}
    if not all(map(is_in_range, twice.values())):
        yield not_checked("J^T 2g - 2 J^T g", "twice the cotangent overflows")
        return
    doubled = evidence.variant("2 g", lambda sample: sample.with_cotangents(**twice))
    found = doubled.tensors(Derivative.VJP)
    for name, once in evidence.tensors(Derivative.VJP).items():
        expected = once.detach().cpu().to(torch.float64) * 2
        got = found[name].detach().cpu()
        stored = expected.to(got.dtype)
        wrong = differing(got, stored)
        if not wrong.any():
            yield exactly(name, False, "", elements=got.numel())
            continue
        if evidence.kernel.deterministic and not has_subnormals(evidence.sample):
            one = evidence.allowance(Derivative.VJP, name)
            fine = expected.isfinite() & (expected.abs() <= FORMATS[evidence.dtype(name)].largest)
            fine &= ~_underflows(evidence, name)
            for excused in (one.overflow, doubled.budgets(Derivative.VJP)[name].overflow):
                fine &= ~excused if excused is not None else True
            unequal = wrong & fine
            if unequal.any():
                message = f"{int(unequal.sum())} of {unequal.numel()} elements are not exactly twice those for g"
                yield exactly(name, unequal, message)
                continue
        yield within_both(evidence, doubled, name, got, expected)


def _underflows(evidence: Evidence, name: str) -> Tensor:
    """Where a gradient's budget has an underflow part at ``MARGIN`` times the cotangent."""

    def smaller(sample: Sample) -> Sample:
        return replace(sample, cotangents={n: g.to(torch.float64) * MARGIN for n, g in sample.cotangents.items()})

    return evidence.variant("g / 16, for its budgets alone", smaller).budgets(Derivative.VJP)[name].floor > 0


def _other(tangent: Tensor, name: str) -> Tensor:
    """The tangent with its elements reversed and hashed signs."""
    uniform = torch.from_numpy(hashing.uniform(1, f"signs {name}", tangent.numel())).reshape(tangent.shape)
    signs = torch.where(uniform < 0.5, -1.0, 1.0).to(tangent.device)
    # in float64, as PyTorch flips and multiplies no 8-bit floats
    return (tangent.double().flip(tuple(range(tangent.dim()))) * signs).to(tangent.dtype)


def _inner_products(
    evidence: Evidence,
    name: str,
    parts: Sequence[tuple[Evidence, Derivative, str]],
    weights: Sequence[Tensor],
    left: int,
) -> Finding:
    """Judge that the inner products of all ``parts`` with their ``weights`` sum to 0; the first ``left`` are a side.

    Its sensitivity is measured against the size that an inner product of such terms has: the root of the sum of their
    squares, on the larger side.
    """
    count = len(parts)

    def total(*tensors: Tensor) -> Tensor:
        return _sum([(a * w).sum() for a, w in zip(tensors[:count], tensors[count:], strict=True)])

    def size(*tensors: Tensor) -> Tensor:
        squares = [(a * w).square().sum() for a, w in zip(tensors[:count], tensors[count:], strict=True)]
        return torch.maximum(_sum(squares[:left]), _sum(squares[left:])).sqrt()

    expression: Callable[..., Tensor] = total
    return evidence.relate(name, expression, parts, scale=size, constants=weights)


def _sum(terms: Sequence[Tensor]) -> Tensor:
    return sum(terms[1:], terms[0])
