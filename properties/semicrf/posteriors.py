"""Posteriors: what a semi-CRF kernel's entry points say of paths, each with its truth and what rounding explains of it.

Probabilities that a segment starts or ends somewhere are the gradients by projections of log Z, so their budgets are
those of these gradients, with projections of zero where there are none. All others are sums of such probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from gradoracle.properties.agreement import double
from gradoracle.properties.applicability import LONGEST_DIM
from gradoracle.properties.semicrf.paths import Paths, projected
from gradoracle.properties.semicrf.problems import FORWARD, VJP, extents
from gradoracle.properties.semicrf.readings.budgets import MEETINGS, budgets, returned
from gradoracle.properties.semicrf.readings.recursion import Problem, forward_backward
from gradoracle.properties.semicrf.readings.recursion import marginals as true_marginals
from torch import Tensor
from torch.nn.functional import pad

from gradoracle.check.acceptance import Allowance
from gradoracle.check.error_relation import PROBES, Part
from gradoracle.check.evidence import Evidence
from gradoracle.execution.kernel_runner import Tensors
from gradoracle.model.contract import EXACT
from gradoracle.model.formats import FORMATS
from gradoracle.oracle.exact.trace import trace
from gradoracle.oracle.rounding import reading
from gradoracle.oracle.rounding.reading import Budget

_STORED, _FINE = "float32", FORMATS["float64"].unit_roundoff
_UNIT = FORMATS[_STORED].unit_roundoff
_TINY = 1e-300
_FEW = 4  # probes


def marginals(evidence: Evidence) -> dict[str, Part]:
    """The kernel's position [B T C], boundary [B T+1] and segment [B T K C] marginals.

    A kernel may sum position marginals up from differences in float64, whose errors are absolute.
    """
    sequences, positions, labels, durations = extents(evidence.sample)
    shapes = {
        "position": (sequences, positions, labels),
        "boundary": (sequences, positions + 1),
        "segment": (sequences, positions, durations, labels),
    }
    position, boundary, segment = evidence.entry("marginals", shapes).values()

    def parts() -> dict[str, Part]:
        known, paths = _known(evidence), Paths(evidence)
        open_ = _derived(
            "position marginals", position, lambda changes: -changes.cumsum(1)[:, :-1], known["dcum_scores"]
        )
        own, fine = open_.allowance, _FINE * paths.steps
        widened = replace(own, sigma=own.sigma + fine, worst=None if own.worst is None else own.worst + fine)
        empty = pad((paths.possible & (paths.lengths == 0)).double()[:, None], (0, paths.steps))  # 0 is its length
        return {
            "position": replace(open_, allowance=widened),
            "boundary": _derived(
                "boundary marginals", boundary, lambda each, empty: each.sum(-1) + empty, _at_boundaries(known), empty
            ),
            "segment": _segments(evidence, segment, known["dproj_start"]),
        }

    return evidence.keep("marginals", parts)


def alpha_and_beta(evidence: Evidence) -> Tensors:
    """The kernel's alpha and beta [B T+1 C], their norms [B T+1] and log Z [B]."""
    sequences, positions, labels, _ = extents(evidence.sample)
    table, norms = (sequences, positions + 1, labels), (sequences, positions + 1)
    shapes = {"alpha": table, "beta": table, "alpha_norm": norms, "beta_norm": norms, "log_z": (sequences,)}
    return evidence.entry("forward_backward", shapes)


def meetings(evidence: Evidence) -> Part:
    """[B T+1 C] exp(alpha_t + beta_t - log Z) of the kernel's alpha and beta, and of the true log Z.

    In truth it is the probability that t is a boundary after a segment of label c (at 0, before a first one that
    follows c). It is 0 where there is no path, past the length, and throughout where every path is forbidden.
    """
    one, other, *norms, _ = map(double, alpha_and_beta(evidence).values())

    def part() -> Part:
        exact, known = forward_backward(evidence.sample.inputs), _known(evidence)[MEETINGS]
        possible = exact.log_z > -torch.inf
        log_z = torch.where(possible, exact.log_z, 0.0)
        got = (one + other + (norms[0] + norms[1] - log_z[:, None])[:, :, None]).exp() * possible[:, None, None]
        held = torch.hypot(*(torch.where(each > -torch.inf, _UNIT * each, 0.0) for each in (one, other)))
        norm = _FINE * (norms[0].abs() + norms[1].abs() + log_z.abs()[:, None])[:, :, None]  # of logarithms
        off = known.value * (held + norm)
        worst = None if known.worst is None else known.worst + known.value * (math.sqrt(2.0) * held + norm)
        sigma = (known.sigma.square() + off.square() / 3).sqrt()
        return Part("exp(alpha + beta - log Z)", got, known.value, Allowance(sigma, known.errors, worst, known.floor))

    return evidence.keep("meetings", part)


def totals(evidence: Evidence) -> tuple[Part, Part]:
    """[B 2] the log of the sum of exp(alpha_t + beta_t) over labels at 0 and at the length, and [B 1] the float64 log Z
    that comes with alpha and beta.

    Both err as log Z does before it is rounded; alpha and beta are rounded too.
    """
    alpha, beta, alpha_norm, beta_norm, log_z = map(double, alpha_and_beta(evidence).values())
    paths, known = Paths(evidence), _of_log_z(evidence)
    at = torch.stack([torch.zeros_like(paths.lengths), paths.lengths], 1)  # [B 2]
    rows = at[:, :, None].expand(-1, -1, alpha.shape[2])
    one, other = alpha.gather(1, rows), beta.gather(1, rows)
    one_norm, other_norm = alpha_norm.gather(1, at), beta_norm.gather(1, at)
    got, shares = torch.logsumexp(one + other, -1) + one_norm + other_norm, torch.softmax(one + other, -1).nan_to_num()
    rounded = [(_UNIT * torch.where(each > -torch.inf, each, 0.0) * shares).abs() for each in (one, other)]
    square = rounded[0].square().sum(-1) + rounded[1].square().sum(-1)
    sizes = _FINE * (one_norm.abs() + other_norm.abs() + torch.where(paths.possible, known.value, 0.0).abs()[:, None])
    own, errors, floor = known.sigma[:, None], known.errors[:, :, None], torch.zeros_like(sizes)
    worst = None
    if known.worst is not None:
        worst = known.worst[:, None] + sizes + rounded[0].sum(-1) + rounded[1].sum(-1)
    ends = Allowance(
        (own.square() + square / 3 + sizes.square()).sqrt(), errors.expand(-1, -1, 2).clone(), worst, floor
    )
    alone = Allowance(torch.hypot(own, sizes[:, :1]), errors, None if worst is None else worst[:, :1], floor[:, :1])
    true = known.value[:, None]
    return (
        Part("log sum of exp(alpha + beta)", got, true.expand(-1, 2), ends),
        Part("log Z of alpha and beta", log_z[:, None], true, alone),
    )


def reached(evidence: Evidence) -> tuple[Tensor, Tensor]:
    """[B T+1 C] whether any path comes to t with label c last, and whether any goes on from there to the length."""

    def found() -> tuple[Tensor, Tensor]:
        problem = Problem(evidence.sample.inputs)
        pairs = []
        for b in range(problem.batch):
            one = problem.sequence(b)
            one.run_back()
            pairs.append((one.alpha[0] > 0, one.beta[0] > 0))
        alpha, beta = (torch.from_numpy(np.stack(each)) for each in zip(*pairs, strict=True))
        return alpha, beta

    return evidence.keep("reached", found)


def across(segment: Tensor) -> Tensor:
    """[B T C] sums of segment [B T K C] over the segments across each position."""
    total = segment.sum(2)  # those that begin there
    steps = segment.shape[1]
    for k in range(1, min(segment.shape[2], steps)):  # and those that began k positions before and are longer than k
        total = total + pad(segment[:, : steps - k, k:].sum(2), (0, 0, k, 0))
    return total


def _known(evidence: Evidence) -> Mapping[str, Budget]:
    """Budgets of log Z, its gradients and ``MEETINGS``, sequence by sequence, projections of zero included.

    Nothing is stored: what is made of them is returned, and rounded, once.
    """

    def read() -> Mapping[str, Budget]:
        inputs = projected(evidence.sample).inputs
        formats = {f"d{name}": "float64" for name in inputs} | {"log_z": "float64", MEETINGS: "float64"}
        return budgets(
            inputs, torch.ones(len(inputs["lengths"])), evidence.contract, VJP, stored=formats, probes=PROBES,
            worst=not evidence.continuous, before=forward_backward(inputs).beta[:, 0],
        )  # fmt: skip

    return evidence.keep("budgets of probabilities", read)


def _at_boundaries(known: Mapping[str, Budget]) -> Budget:
    """[B T+1 C] of what begins at 0 and of what ends at each later place: a kernel may add these up."""
    starts, ends = known["dproj_start"], known["dproj_end"]

    def joined(field: Callable[[Budget], Tensor]) -> Tensor:
        return torch.cat([field(starts)[..., :1, :], field(ends)], -2)

    bounded = starts.worst is not None and ends.worst is not None
    return Budget(
        joined(lambda each: each.value), joined(lambda each: each.sigma), joined(lambda each: each.independent),
        joined(lambda each: each.errors), joined(lambda each: cast(Tensor, each.worst)) if bounded else None,
        joined(lambda each: each.floor),
    )  # fmt: skip


def _of_log_z(evidence: Evidence) -> Budget:
    """The budget of log Z in float64, sequence by sequence; of few probes where sequences are long."""
    inputs = evidence.sample.inputs
    probes = PROBES if inputs["cum_scores"].shape[1] <= LONGEST_DIM else _FEW

    def read() -> Budget:
        return budgets(
            inputs, torch.ones(len(inputs["lengths"])), evidence.contract, FORWARD, stored={"log_z": "float64"},
            probes=probes, worst=not evidence.continuous,
        )["log_z"]  # fmt: skip

    return evidence.keep("budget of log Z in float64", read)


def _derived(name: str, got: Tensor, expression: Callable[..., Tensor], known: Budget, *constants: Tensor) -> Part:
    """A part that is a function of known probabilities, with their errors and the rounding of what is returned."""
    args = [known.value, *constants]
    graph = trace(lambda *tensors: (expression(*tensors),), *args)
    carried = (known.sigma.square(), known.worst, known.errors)
    expected = known.worst is not None
    (budget,) = reading.budgets(
        graph, args, EXACT, probes=PROBES, worst=expected, input_errors=[carried, *[None] * len(constants)]
    )
    return Part(name, got, budget.value, _stored(name, budget.value, budget.sigma, budget.errors, budget.worst))


def _segments(evidence: Evidence, got: Tensor, starts: Budget) -> Part:
    """Segments err as the probability does that one of their label starts where they do, and by an exponential and the
    size of their logarithm (budgets.py)."""
    true, contract = true_marginals(evidence.sample.inputs).segment, evidence.contract
    whole = starts.value[:, :, None]
    share = torch.where(whole > 0, true / whole.clamp_min(_TINY), 0.0)
    logs = torch.where(true > 0, true.clamp_min(_TINY).log(), 0.0)
    unit = FORMATS[contract.elementwise].unit_roundoff
    own = unit * true * (contract.exp_ulps**2 + 3 + logs.square()).sqrt()
    sigma = ((share * starts.sigma[:, :, None]).square() + own.square() / 3).sqrt()
    worst = None if starts.worst is None else share * starts.worst[:, :, None] + own
    name, errors = "segment marginals", share * starts.errors[:, :, :, None]
    return Part(name, got, true, _stored(name, true, sigma, errors, worst))


def _stored(name: str, true: Tensor, sigma: Tensor, errors: Tensor, worst: Tensor | None) -> Allowance:
    """With the one rounding of a result in float32, and with what is lost below its normal numbers."""
    own = returned(name, true, sigma, errors, sigma, worst, _STORED)
    return Allowance(own.sigma, own.errors, own.worst, own.floor)
