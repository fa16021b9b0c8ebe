"""Normalised rows: softmax and log-softmax, in which errors cancel along a row."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradoracle.model.formats import FORMATS
from gradoracle.oracle.rounding import independent, worst_case
from gradoracle.oracle.rounding.call import Call
from gradoracle.oracle.rounding.probes import LN_2, LOG2_E, mixed
from gradoracle.oracle.rounding.quantity import FAR, Quantity, plus
from gradoracle.oracle.rounding.rounding_model import SUM_BITS, Roundoff, dropped_terms

_LOST = 0.1 / FAR  # a relative error of a row beyond which its budget would decide nothing


def softmax(roundoff: Roundoff, call: Call) -> Quantity:
    """exp(x - max) / sum: the exponent's roundings, exp, the sum's and the quotient's."""
    (x, dim, *_), value, place, contract = call.args, call.value, call.place, roundoff.contract
    top = x.value.amax(dim, keepdim=True)
    depth = torch.nan_to_num((x.value - top).abs(), nan=0.0, posinf=0.0)
    size = torch.nan_to_num(x.value.abs(), nan=0.0, posinf=0.0)
    proper = torch.nan_to_num(value, nan=0.0)
    unit = FORMATS[contract.elementwise].unit_roundoff if contract.rounds else 0.0
    constant = FORMATS[contract.constants].unit_roundoff if contract.rounds else 0.0
    if bool((alike := _all_alike(top, depth, proper, unit, dim)).any()):
        size = torch.where(alike, 0.0, size)
    # the exponent is a rounded difference of rounded products by log2 e: u |x - m|, u |x|, and exp's own error
    own = (depth.square() + size.square() + contract.exp_ulps**2) * unit**2
    steps = float(x.value.shape[dim])
    dropped = _dropped_share(roundoff, proper, dim)
    variance = floor = bound = probes = None
    if roundoff.variances or x.variance is not None:
        relative = plus(x.variance, (own + (depth * constant).square()) / 3)
        assert relative is not None
        variance = independent.softmax(proper, x.value, relative, dim)
        floor = None if x.floor is None else independent.softmax(proper, x.value, x.floor, dim)
    if roundoff.worst or x.worst is not None:
        relative = plus(x.worst, (depth + size + 2 * contract.exp_ulps) * unit + depth * constant)
        assert relative is not None
        bound = worst_case.softmax(proper, x.value, relative, dim)
    if roundoff.dice is not None or x.probes is not None:
        moved = x.value if x.probes is None else x.probes
        axis = dim if dim < 0 else dim - x.value.dim()
        powers = torch.exp(torch.nan_to_num(moved - moved.amax(axis, keepdim=True), nan=-torch.inf))
        if roundoff.dice is not None and contract.rounds:
            sampled = roundoff.dice.constant(LOG2_E).view(-1, *[1] * x.value.dim())
            scaled = sampled * (constant * roundoff.magnify * depth)
            powers = powers * torch.exp(roundoff.noise(x.value, own.sqrt(), mixed(place, 1)).sub_(scaled))
        total = powers.sum(axis, keepdim=True)
        if roundoff.dice is not None and contract.rounds:
            mass = torch.nan_to_num(torch.exp(x.value - top), nan=0.0).sum(dim, keepdim=True)
            width = torch.full_like(mass, unit * (steps / 3 + 2) ** 0.5)
            erring = roundoff.noise(mass, width, mixed(place, 2), SUM_BITS)
            if dropped is not None:
                erring = erring.sub_(roundoff.dice.cut(dropped.dim()) * (dropped * roundoff.magnify))
            total = total * (1 + erring)
        probes = powers / total
    q = Quantity(value, variance, floor, bound, probes, place=place)
    if not contract.rounds:
        return q
    # one sum per row, one quotient per element; a row of one term is divided by itself
    return roundoff.elementwise(_row_error(roundoff, q, proper, unit, steps, dropped), mixed(place, 3))


def _dropped_share(roundoff: Roundoff, share: Tensor, dim: int) -> Tensor | None:
    """The part of a row's sum whose terms are too small to change a partial sum; None where there are none."""
    if not roundoff.contract.rounds:
        return None
    dropped = dropped_terms(share, dim, FORMATS[roundoff.contract.elementwise].unit_roundoff)
    return None if dropped is None else dropped.sum(dim, keepdim=True)


def _all_alike(top: Tensor, depth: Tensor, value: Tensor, unit: float, dim: int) -> Tensor:
    """Which elements share the whole weight of their row with others of the same, very large, value.

    As where a finite number masks every key: these elements err alike, and the quotient cancels that. Rows in which
    u |x| is small enough for a kernel that keeps log-sum-exps are not among them.
    """
    tied = (depth == 0) & (value > 0)
    lost = (top.abs() * unit > _LOST) & (tied | (value == 0)).all(dim, keepdim=True)
    return tied & lost


def _row_error(
    roundoff: Roundoff, q: Quantity, value: Tensor, unit: float, steps: float, dropped: Tensor | None
) -> Quantity:
    """The rounding of the row's sum in variances and bounds; the probes have theirs already."""
    variance = q.variance
    if roundoff.variances:
        relative = unit**2 / 3 * (steps / 3 + 2) + (0.0 if dropped is None else dropped.square())
        variance = plus(variance, value.square() * relative)
    bound = plus(q.worst, value * (unit * (steps + 2))) if roundoff.worst else q.worst
    return replace(q, variance=variance, worst=bound)


def log_softmax(roundoff: Roundoff, call: Call) -> Quantity:
    """x - max - log sum exp(x - max): the differences' roundings, the sum's and the logarithm's."""
    (x, dim, *_), value, place, contract = call.args, call.value, call.place, roundoff.contract
    top = x.value.amax(dim, keepdim=True)
    depth = torch.nan_to_num((x.value - top).abs(), nan=0.0, posinf=0.0)
    share = torch.nan_to_num(torch.exp(value), nan=0.0)
    log_sum = torch.nan_to_num((x.value - top - value).abs(), nan=0.0, posinf=0.0).amax(dim, keepdim=True)
    unit = FORMATS[contract.elementwise].unit_roundoff if contract.rounds else 0.0
    steps = float(x.value.shape[dim])
    finite = value.isfinite()
    mean_depth = (share * depth).sum(dim, keepdim=True)  # what the constant of exp multiplies; that of log, log_sum
    # per row: the sum and the logarithm; per element: two differences
    dropped = _dropped_share(roundoff, share, dim)
    row = unit * torch.sqrt(steps / 3 + 2 + contract.exp_ulps**2 + (contract.log_ulps * log_sum.clamp_min(1.0)) ** 2)
    own = unit * torch.sqrt(depth.square() + torch.where(finite, value, 0.0).square())
    variance = floor = bound = probes = None
    if roundoff.variances or x.variance is not None:
        passed = None if x.variance is None else independent.log_softmax(share, x.variance, dim)
        constants = (roundoff.literal * mean_depth).square() + (roundoff.literal * log_sum).square()
        committed = (row.square() + own.square() + constants) / 3
        if dropped is not None:
            committed = committed + dropped.square()
        variance = torch.where(finite, committed if passed is None else committed + passed, 0.0)
        floor = None if x.floor is None else torch.where(finite, independent.log_softmax(share, x.floor, dim), 0.0)
    if roundoff.worst or x.worst is not None:
        shifts = None if x.worst is None else x.worst + worst_case.log_sum(x.value, x.worst, dim)
        local = unit * (steps + 2 + 2 * contract.exp_ulps + 2 * contract.log_ulps * log_sum.clamp_min(1.0))
        local = local + 2 * own + roundoff.literal * (mean_depth + log_sum)
        bound = torch.where(finite, local if shifts is None else local + shifts, 0.0)
    if roundoff.dice is not None or x.probes is not None:
        moved = x.value if x.probes is None else x.probes
        axis = dim if dim < 0 else dim - x.value.dim()
        probes = torch.log_softmax(moved, axis)
        if roundoff.dice is not None and contract.rounds:
            key = torch.where(log_sum == 0, top, log_sum)
            probes = (
                probes
                + roundoff.noise(key, row, mixed(place, 1), SUM_BITS)
                + roundoff.noise(value, own, mixed(place, 2))
            )
            if dropped is not None:  # the logarithm of less
                probes = probes + roundoff.dice.cut(dropped.dim()) * (dropped * roundoff.magnify)
            for constant, moves in ((LOG2_E, mean_depth), (LN_2, log_sum)) if roundoff.literal else ():
                sampled = roundoff.dice.constant(constant).view(-1, *[1] * x.value.dim())
                probes = probes + sampled * (roundoff.literal * roundoff.magnify * moves)
    return Quantity(value, variance, floor, bound, probes, place=place)
