"""Reductions, with the errors they pass on and commit: sums, products, triangular solves, extremes, scattered sums."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradoracle.model.formats import FORMATS, Format
from gradoracle.oracle.rounding import independent, worst_case
from gradoracle.oracle.rounding.call import Call
from gradoracle.oracle.rounding.choices import picked
from gradoracle.oracle.rounding.probes import EVEN_SPREAD, mixed, rounding_errors
from gradoracle.oracle.rounding.quantity import (
    Quantity,
    any_error,
    cleared,
    each_error,
    errors_alone,
    plus,
    where_finite,
)
from gradoracle.oracle.rounding.rounding_model import SUM_BITS, Roundoff, dropped_terms

_CHECKPOINTS = 4  # partial sums that are computed
_ALIGNED_BLOCK = 32  # products of 8-bit floats that a tensor core adds at a time
_LEAST = -200  # exponent of a scaled 8-bit float, and less than any
_PRODUCTS_AT_ONCE = 1 << 20


def sum_of(roundoff: Roundoff, call: Call) -> Quantity:
    """sum and cumsum."""
    x, value, rest = call.sources[0], call.value, call.args[1:]
    if not x.is_float:
        return call.exact()
    finite = where_finite(value)

    def summed(terms: Tensor | None) -> Tensor | None:
        return None if terms is None else cleared(call.operator(terms, *rest, **call.kwargs), finite)

    q = Quantity(value, **each_error(lambda error: summed(getattr(x, error))), probes=call.probes(), place=call.place)
    if not roundoff.contract.rounds:
        return q
    if call.name == "cumsum":
        rank = x.value.dim()
        terms: Any = counts(x.value, rest[0], 1) if rank else 1.0
    else:
        terms = x.value.numel() / max(value.numel(), 1)
        if terms <= 1:
            return replace(q, held=x.held)
    squares = summed(x.value.square())
    largest = summed(worst_case.magnitude(x)) if roundoff.worst else None
    assert squares is not None
    in_order = None
    dims = rest[0] if rest and isinstance(rest[0], (list, tuple)) else None
    if call.name == "sum" and dims and len(dims) == 1:
        last = x.value.movedim(dims[0], -1).unsqueeze(-2)  # [.. 1 t]
        total = value if value.dim() < x.value.dim() else value.squeeze(dims[0])
        ones = torch.ones(last.shape[-1], 1, dtype=last.dtype)
        drift = _drift(last, ones, total[..., None, None])
        in_order = None if drift is None else cleared(drift.reshape(value.shape), finite)
    dropped = None
    if call.name == "sum":
        unit = FORMATS[roundoff.contract.accumulate].unit_roundoff
        small = dropped_terms(x.value, list(dims or range(x.value.dim())), unit)
        dropped = summed(small)
    return roundoff.running_sum(q, squares, terms, largest, call.place, in_order, dropped=dropped)


def counts(x: Tensor, dim: int, first: int) -> Tensor:
    """first, first + 1, ... along a dim of ``x``, to be broadcast."""
    counts = torch.arange(first, first + x.shape[dim], dtype=torch.float64)
    return counts.view([-1 if d == dim % x.dim() else 1 for d in range(x.dim())])


def running_errors(roundoff: Roundoff, call: Call) -> Quantity:
    """The errors of running sums whose entries stand for several terms (``running_sums``); their value is 0."""
    x, dim, terms = call.args
    value = x.value.cumsum(dim)
    added = terms * counts(x.value, dim, 0)
    largest = worst_case.magnitude(x).cumsum(dim) if roundoff.worst else None
    q = Quantity(value, place=call.place)
    if roundoff.contract.rounds:
        before = value - x.value
        between = terms / 3 * (before.square() + before * value + value.square())  # along straight lines
        between.narrow(dim, 0, 1).zero_()
        squares = x.value.square().cumsum(dim)
        q = roundoff.running_sum(q, squares, added, largest, call.place, between.cumsum(dim))
    return errors_alone(q)


def accumulating_errors(roundoff: Roundoff, call: Call) -> Quantity:
    """The errors of ``accumulated`` beyond those of its parts; their value is 0."""
    x, terms = call.args
    value = x.value.sum(0)
    q = Quantity(value, place=call.place)
    if roundoff.contract.rounds:
        before = x.value.cumsum(0) - x.value
        largest = worst_case.magnitude(x).sum(0) if roundoff.worst else None
        q = roundoff.onto_others(q, x.value, (before, value - before - x.value), terms, largest, call.place)
    return errors_alone(q)


def matrix_product(roundoff: Roundoff, call: Call) -> Quantity:
    """mm and bmm; operands are rounded to the operand's format."""
    x, y = (
        roundoff.operand(q, position, along) if q.is_float else q
        for q, position, along in zip(call.args, (0, 1), (-1, -2), strict=True)
    )
    value = torch.matmul(x.value, y.value)
    finite = where_finite(value)
    variance, floor = (cleared(independent.product(x, y, error), finite) for error in ("variance", "floor"))
    bounded = roundoff.worst or x.worst is not None or y.worst is not None
    bound, largest = worst_case.product(x, y) if bounded else (None, None)
    probes = None
    if x.probes is not None or y.probes is not None:
        probes = torch.matmul(*(q.value if q.probes is None else q.probes for q in (x, y)))
    q = Quantity(value, variance, floor, cleared(bound, finite), probes, place=call.place)
    if roundoff.contract.rounds:
        squares = cleared(torch.matmul(x.value.square(), y.value.square()), finite)
        assert squares is not None
        in_order = cleared(_drift(x.value, y.value, value), finite)
        dropped = cleared(_dropped_products(roundoff, x.value, y.value, value, squares), finite)
        terms, largest, unit = float(x.value.shape[-1]), cleared(largest, finite), None
        if aligned := roundoff.contract.aligned or FORMATS[roundoff.contract.operand].aligned:
            terms, unit = terms / _ALIGNED_BLOCK + 1, 2.0 ** -(aligned + 1)
        q = roundoff.running_sum(
            q, squares, terms, largest, call.place, in_order, products=True, dropped=dropped, unit=unit
        )
        place = mixed(call.place, 9)
        if aligned:
            formats = tuple(_of_eight_bits(roundoff, each) for each in (x, y))
            q = _cut_next_to_the_largest(roundoff, q, x.value, y.value, place, aligned, formats)
        else:
            q = _cut_where_subnormal(roundoff, q, x.value, y.value, place)
    return q


def _dropped_products(roundoff: Roundoff, x: Tensor, y: Tensor, value: Tensor, squares: Tensor | None) -> Tensor | None:
    """The part of x @ y in terms too small to change a partial sum, since an operand is; None if there is none.

    A small operand may meet a large one: no term counts for more than what a partial sum of that size drops.
    """
    if roundoff.contract.accumulate_block or squares is None:
        return None
    unit = FORMATS[roundoff.contract.accumulate].unit_roundoff
    left, right = dropped_terms(x, -1, unit), dropped_terms(y, -2, unit)
    counts, total = torch.zeros((), dtype=torch.float64), torch.zeros_like(value)
    if left is not None:
        counts = counts + left.count_nonzero(-1).unsqueeze(-1)
        total = total + torch.matmul(left, y)
    if right is not None:
        counts = counts + right.count_nonzero(-2).unsqueeze(-2)
        total = total + torch.matmul(x if left is None else x - left, right)
    most = torch.maximum(value.abs(), squares.sqrt()).mul_(unit * counts)
    return None if left is None and right is None else total.clamp_(-most, most)


def _cut_where_subnormal(roundoff: Roundoff, q: Quantity, x: Tensor, y: Tensor, place: int) -> Quantity:
    """``q`` = x @ y with what tensor cores truncate of products of subnormal operands.

    They align products by the operands' exponents, and a subnormal number has that of the smallest normal one: a block
    of products is truncated at u of the largest such size, however small the products are.
    """
    contract = roundoff.contract
    if not contract.accumulate_block:
        return q
    smallest = FORMATS[FORMATS[contract.operand].parts or contract.operand].smallest_normal
    sizes = [x.abs(), y.abs()]
    low = [(size > 0) & (size < smallest) for size in sizes]
    if not any(bool(where.any()) for where in low):
        return q
    squares = torch.matmul(*(torch.where(w, smallest, size).square_() for w, size in zip(low, sizes, strict=True)))
    squares.sub_(torch.matmul(*(size.masked_fill_(w, 0.0).square_() for w, size in zip(low, sizes, strict=True))))
    steps = x.shape[-1] / contract.accumulate_block + 1
    width = torch.nan_to_num_(squares).clamp_min_(0.0).sqrt_().mul_(FORMATS[contract.accumulate].unit_roundoff * steps)
    key = torch.where(q.value == 0, 1.0, q.value)
    return roundoff.committed(
        q, width, key=key, bits=SUM_BITS, place=place, bound=2 * width if roundoff.worst else None
    )


def _of_eight_bits(roundoff: Roundoff, q: Quantity) -> Format | None:
    """The 8-bit format of an operand; None where the definition has scaled or computed it."""
    names = (q.held, roundoff.contract.operand)
    return next((FORMATS[name] for name in names if name is not None and FORMATS[name].aligned), None)


def _cut_next_to_the_largest(
    roundoff: Roundoff,
    q: Quantity,
    x: Tensor,
    y: Tensor,
    place: int,
    aligned: int,
    formats: tuple[Format | None, ...],
) -> Quantity:
    """``q`` = x @ y with what tensor cores of 8-bit floats cut off the products themselves.

    They cut each product toward zero to a multiple of 2^(e - ``aligned``), where e is the largest exponent among the
    products and the sum so far. A product of significands of b bits has bits down to 2^(2 - 2 b) of its exponent: a
    product much smaller than the largest loses some of them, on average half a multiple and at most one. Of an operand
    that the definition scales before the product, and a kernel after it, the bits are not known: each product may lose
    some, and the exponent may be one more.
    """
    lowest = [_LEAST if each is None else each.lowest for each in formats]
    left, right = (_exponents(each, least) for each, least in zip((x, y), lowest, strict=True))
    chunk = max(1, _PRODUCTS_AT_ONCE // max(q.value.numel(), 1))
    starts = range(0, x.shape[-1], chunk)

    def products(start: int) -> tuple[Tensor, Tensor]:
        """[.. M k N]: exponents and signs."""
        some = slice(start, start + chunk)
        exponent = left[..., :, some, None] + right[..., None, some, :]
        return exponent, x[..., :, some, None].sign() * y[..., None, some, :].sign()

    sums = torch.maximum(q.value.abs(), torch.matmul(x.square(), y.square()).sqrt())
    top = _exponents(torch.where(sums.isfinite(), sums, 0.0), sum(lowest))
    for start in starts:
        exponent, sign = products(start)
        top = torch.maximum(top, torch.where(sign == 0, top.unsqueeze(-2), exponent).amax(-2))
    bits = sum(math.inf if each is None else each.bits - 1 for each in formats)
    top = top + sum(each is None for each in formats)
    whole = top - aligned + bits  # products with larger exponents lose nothing
    count, drift = torch.zeros_like(q.value), torch.zeros_like(q.value)
    for start in starts:
        exponent, sign = products(start)
        sign = torch.where(exponent < whole.unsqueeze(-2), torch.nan_to_num(sign), 0.0)
        count += sign.abs().sum(-2)
        drift += sign.sum(-2)
    if not count.any():
        return q
    step = torch.exp2(top - aligned)
    key = torch.where(q.value == 0, 1.0, q.value)
    bound = step * count if roundoff.worst else None
    return roundoff.committed(
        q, step * count.sqrt(), key=key, bits=SUM_BITS, place=place, bound=bound, shift=drift * step / -2
    )


def _exponents(values: Tensor, least: int) -> Tensor:
    """Of the sizes of values, float64; ``least`` for smaller ones."""
    return (torch.frexp(values).exponent - 1).clamp_min(least).to(torch.float64)


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


def extreme(roundoff: Roundoff, call: Call) -> Any:
    """amax, amin, max, min; with indices, and sort and topk, a choice."""
    x, args, kwargs = call.args[0], call.args, call.kwargs
    if isinstance(call.value, tuple):
        return picked(roundoff, call)
    if not x.is_float:
        return call.exact()
    dims = list(args[1]) if len(args) > 1 and args[1] else list(range(x.value.dim()))
    keep = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keepdim", False))
    variance, floor = (
        None if e is None else independent.extreme(call.value, e, x.value, dims, keep) for e in (x.variance, x.floor)
    )
    return Quantity(call.value, variance, floor, worst_case.extreme(call, x), call.probes(), x.held, place=call.place)


def accumulate(roundoff: Roundoff, call: Call) -> Quantity:
    """Scattered sums: as many terms as fall on an element, in any order."""
    if not call.value.is_floating_point():
        return call.exact()

    def over(change: Callable[[Quantity], Tensor]) -> Tensor:
        changed = [replace(a, value=change(a)) if isinstance(a, Quantity) and a.is_float else a for a in call.args]
        return replace(call, args=changed).value  # type: ignore[no-any-return]

    def error_or_zero(error: str, a: Quantity) -> Tensor:
        own: Tensor | None = getattr(a, error)
        return torch.zeros_like(a.value) if own is None else own

    errors = each_error(
        lambda error: over(functools.partial(error_or_zero, error)) if any_error(call.args, error) else None
    )
    q = Quantity(call.value, **errors, probes=call.probes(), place=call.place)
    if not roundoff.contract.rounds:
        return q
    terms = over(lambda a: torch.ones_like(a.value)) - 1
    squares = over(lambda a: a.value.square())
    largest = over(worst_case.magnitude) if roundoff.worst else None
    return roundoff.running_sum(q, squares, terms.clamp_min(0.0), largest, call.place)


def _drift(x: Tensor, y: Tensor, total: Tensor) -> Tensor | None:
    """The sum of squares of x @ y's partial sums, as straight lines between some of them, in the worse direction.

    A kernel may start from either end; None if there are too few terms to have an order.
    """
    terms = x.shape[-1]
    if terms < 2 or y.dim() < 2:
        return None
    step = -(-terms // _CHECKPOINTS)
    squares, ends = torch.zeros_like(total), torch.zeros_like(total)  # sums of n (a^2 + ab + b^2) / 3 and n (a + b)
    before: Tensor | None = None
    for first in range(0, terms, step):
        count = min(step, terms - first)
        after = torch.matmul(x[..., first : first + step], y[..., first : first + step, :])
        if before is None:
            squares.addcmul_(after, after, value=count / 3)
            ends.add_(after, alpha=count)
        else:
            after.add_(before)
            both = before + after
            squares.addcmul_(both, both, value=count / 3).addcmul_(before, after, value=-count / 3)
            ends.add_(both, alpha=count)
        before = after
    # from the other end the partial sums are total - a: the sum of their squares differs by total (t total - ends)
    return squares.add_(ends.neg_().add_(total, alpha=terms).mul_(total).clamp_min_(0.0))
