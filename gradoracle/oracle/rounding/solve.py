"""Triangular solves: substitution is a running sum for each element, and errors pass on through the inverse."""

from __future__ import annotations

import torch
from torch import Tensor

from gradoracle.model.formats import FORMATS
from gradoracle.oracle.rounding.call import Call
from gradoracle.oracle.rounding.probes import EVEN_SPREAD, mixed, rounding_errors
from gradoracle.oracle.rounding.quantity import Quantity, plus
from gradoracle.oracle.rounding.rounding_model import Roundoff


def triangular_solve(roundoff: Roundoff, call: Call) -> Quantity:
    """X with A X = B (or X A = B). The result of a correct kernel solves (A + dA) X = B + dB with |dA| a few roundings.

    Errors e obey A e = dB - dA X. The committed part is that of a running sum over a row of A times X.
    """
    (a, b), kwargs = call.args, call.kwargs
    upper, left, unit = kwargs["upper"], kwargs.get("left", True), kwargs.get("unitriangular", False)
    triangle = (lambda m: m.triu(1 if unit else 0)) if upper else (lambda m: m.tril(-1 if unit else 0))
    times = (lambda m, x: torch.matmul(m, x)) if left else (lambda m, x: torch.matmul(x, m))

    value = call.value
    eye = torch.eye(a.value.shape[-1], dtype=value.dtype).expand_as(a.value)
    inverse = call.operator(a.value, eye, upper=upper, left=True, unitriangular=unit)
    used = triangle(a.value)
    terms = float(used.shape[-1])
    squares = times(used.square(), value.square())
    step = FORMATS[roundoff.contract.accumulate].unit_roundoff if roundoff.contract.rounds else 0.0
    # (1 + t/2) for the sum and the quotient; the drift is that of the right-hand side
    width = step * ((1 + terms / 2) * squares + terms / 3 * b.value.square()).sqrt()

    def passed(over_a: Tensor | None, over_b: Tensor | None, own: Tensor | None, power: float) -> Tensor | None:
        through_a = None if over_a is None else times(triangle(over_a), value.abs() ** power)
        total = plus(through_a, over_b, own)
        return None if total is None else times(inverse.abs() ** power, total)

    variance = passed(a.variance, b.variance, width.square() / 3 if roundoff.variances else None, 2)
    floor = passed(a.floor, b.floor, None, 2)
    largest = step * (terms + 1) * times(used.abs(), value.abs()) if roundoff.worst else None
    worst = passed(a.worst, b.worst, largest, 1)
    probes = None
    if roundoff.dice is not None or a.probes is not None or b.probes is not None:
        rhs = b.value if b.probes is None else b.probes
        if roundoff.dice is not None and step:
            bits = min(FORMATS[roundoff.contract.accumulate].bits, 30)
            key = torch.copysign(b.value.abs() + width / step, b.value)
            signed = torch.copysign(width * (EVEN_SPREAD * roundoff.magnify), key)
            rhs = rhs + rounding_errors(key, bits, roundoff.dice.factors(mixed(call.place, 1)), signed)
        matrix = a.value if a.probes is None else a.probes
        batch = torch.broadcast_shapes(matrix.shape[:-2], rhs.shape[:-2])
        matrix, rhs = (m.expand(*batch, *m.shape[-2:]) for m in (matrix, rhs))
        probes = call.operator(matrix, rhs, **kwargs)
    return Quantity(value, variance, floor, worst, probes, place=call.place)
