"""Reductions: sums, matrix products, maxima and scattered sums, with the errors they pass on and commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradoracle.model.contract import SMALLEST_NORMAL, UNIT_ROUNDOFF
from gradoracle.oracle.rounding import bounds, independent
from gradoracle.oracle.rounding.probes import mixed, probed, run_lifted
from gradoracle.oracle.rounding.quantity import Quantity, any_error, cleared, plus, quantities, values, where_finite
from gradoracle.oracle.rounding.rounding_model import SUM_BITS, Roundoff

_CHECKPOINTS = 4  # partial sums that are looked at


def sum_of(roundoff: Roundoff, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int) -> Quantity:
    """sum, mean and cumsum."""
    (x,) = quantities(args)[:1]
    value = operator(*values(args), **kwargs)
    if not x.is_float:
        return Quantity(value, probes=probed(operator, args, kwargs))
    rest = args[1:]
    scale = value.numel() / max(x.value.numel(), 1) if name == "mean" else 1.0
    summed = lambda e: operator(e, *rest, **kwargs) * scale  # noqa: E731
    finite = where_finite(value)
    variance, floor = (None if e is None else cleared(summed(e), finite) for e in (x.variance, x.floor))
    bound = None if x.worst is None else cleared(operator(x.worst, *rest, **kwargs), finite)
    q = Quantity(value, variance, floor, bound, probed(operator, args, kwargs), place=place)
    if not roundoff.contract.rounds:
        return q
    if name == "cumsum":
        dim = rest[0]
        count = x.value.shape[dim] if x.value.dim() else 1
        terms: Any = torch.arange(1, count + 1, dtype=torch.float64)
        rank = x.value.dim()
        terms = terms.view([-1 if d == dim % rank else 1 for d in range(rank)]) if rank else 1.0
    else:
        terms = x.value.numel() / max(value.numel(), 1)
        if terms <= 1:
            return q.with_(held=x.held)
    squares = cleared(summed(x.value.square()), finite)
    largest = cleared(operator(bounds.magnitude(x), *rest, **kwargs), finite) if roundoff.worst else None
    assert squares is not None
    in_order = None
    dims = rest[0] if rest and isinstance(rest[0], (list, tuple)) else None
    if name == "sum" and dims and len(dims) == 1:
        last = x.value.movedim(dims[0], -1).unsqueeze(-2)  # [.. 1 t]
        total = value if value.dim() < x.value.dim() else value.squeeze(dims[0])
        ones = torch.ones(last.shape[-1], 1, dtype=last.dtype)
        drift = _drift(last, ones, total[..., None, None])
        in_order = None if drift is None else cleared(drift.reshape(value.shape), finite)
    q = roundoff.running_sum(q, squares, terms, largest, place, in_order)
    return roundoff.elementwise(q, mixed(place, 7)) if name == "mean" else q


def running_errors(
    roundoff: Roundoff, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int
) -> Quantity:
    """The errors of running sums whose entries stand for several terms (``stored.running_sums``); their value is 0."""
    x, dim, terms = args
    value, rank = x.value.cumsum(dim), x.value.dim()
    counts = terms * torch.arange(value.shape[dim], dtype=torch.float64)
    counts = counts.view([-1 if d == dim % rank else 1 for d in range(rank)])
    largest = bounds.magnitude(x).cumsum(dim) if roundoff.worst else None
    q = Quantity(value, place=place)
    if roundoff.contract.rounds:
        before = value - x.value
        between = terms / 3 * (before.square() + before * value + value.square())  # along straight lines
        between.narrow(dim, 0, 1).zero_()
        q = roundoff.running_sum(q, x.value.square().cumsum(dim), counts, largest, place, between.cumsum(dim))
    probes = None if q.probes is None else q.probes - value
    return q.with_(value=torch.zeros_like(value), probes=probes)


def accumulating_errors(
    roundoff: Roundoff, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int
) -> Quantity:
    """The errors of ``stored.accumulated`` beyond those of its parts; their value is 0."""
    x, terms = args
    value = x.value.sum(0)
    q = Quantity(value, place=place)
    if roundoff.contract.rounds:
        before = x.value.cumsum(0) - x.value
        largest = bounds.magnitude(x).sum(0) if roundoff.worst else None
        q = roundoff.onto_others(q, x.value, (before, value - before - x.value), terms, largest, place)
    probes = None if q.probes is None else q.probes - value
    return q.with_(value=torch.zeros_like(value), probes=probes)


def matrix_product(
    roundoff: Roundoff, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int
) -> Quantity:
    """mm, bmm, mv, dot, and addmm, baddbmm as a product and a sum; operands are rounded to the operand's format."""
    first = len(args) - 2
    x, y = (
        roundoff.operand(q, first + i, along=-1 if i == 0 else -min(q.value.dim(), 2)) if q.is_float else q
        for i, q in enumerate(args[first:])
    )
    value = torch.matmul(x.value, y.value)
    finite = where_finite(value)
    variance, floor = (cleared(independent.product(x, y, a), finite) for a in ("variance", "floor"))
    bounded = roundoff.worst or x.worst is not None or y.worst is not None
    bound, largest = bounds.product(x, y) if bounded else (None, None)
    probes = _matmul_probes(x, y)
    q = Quantity(value, variance, floor, cleared(bound, finite), probes, place=place)
    if roundoff.contract.rounds:
        squares = cleared(torch.matmul(x.value.square(), y.value.square()), finite)
        assert squares is not None
        in_order = cleared(_drift(x.value, y.value, value), finite)
        terms = float(x.value.shape[-1])
        q = roundoff.running_sum(q, squares, terms, cleared(largest, finite), place, in_order, products=True)
        q = _cut_where_subnormal(roundoff, q, x.value, y.value, mixed(place, 9))
    if name in ("addmm", "baddbmm"):
        beta, alpha = float(kwargs.get("beta", 1)), float(kwargs.get("alpha", 1))
        for factor, extra in ((alpha, None), (beta, args[0])):
            q = _scaled(q, factor) if extra is None else _added(q, _scaled(extra, factor), place)
        q = roundoff.elementwise(q, mixed(place, 8)) if roundoff.contract.rounds else q
    return q


def _cut_where_subnormal(roundoff: Roundoff, q: Quantity, x: Tensor, y: Tensor, place: int) -> Quantity:
    """``q`` = x @ y with what tensor cores cut off products of subnormal operands.

    They align products by the operands' exponents, and a subnormal number has that of the smallest normal one: a block
    of products is cut at u of the largest such size, however small the products are.
    """
    contract = roundoff.contract
    if not contract.accumulate_block:
        return q
    smallest = SMALLEST_NORMAL[contract.operand]
    low = [(size > 0) & (size < smallest) for size in (x.abs(), y.abs())]
    if not any(bool(where.any()) for where in low):
        return q
    grown = [torch.where(where, smallest, size.abs()) for where, size in zip(low, (x, y), strict=True)]
    plain = [torch.where(where, 0.0, size.abs()) for where, size in zip(low, (x, y), strict=True)]
    squares = torch.matmul(grown[0].square(), grown[1].square()) - torch.matmul(plain[0].square(), plain[1].square())
    steps = x.shape[-1] / contract.accumulate_block + 1
    width = UNIT_ROUNDOFF[contract.accumulate] * steps * torch.nan_to_num(squares).clamp_min(0.0).sqrt()
    key = torch.where(q.value == 0, 1.0, q.value)
    return roundoff.committed(
        q, width, key=key, bits=SUM_BITS, place=place, bound=2 * width if roundoff.worst else None
    )


def extreme(roundoff: Roundoff, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int) -> Any:
    """amax, amin, max, min; sort and topk move values."""
    x = args[0]
    value = operator(*values(args), **values(kwargs))
    if isinstance(value, tuple):
        return _picked(value, x, _axis(name, args, kwargs), place)
    probes = probed(operator, args, kwargs)
    if not x.is_float:
        return Quantity(value, probes=probes)
    dims = list(args[1]) if len(args) > 1 and args[1] else list(range(x.value.dim()))
    keep = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keepdim", False))
    variance, floor = (
        None if e is None else independent.extreme(value, e, x.value, dims, keep) for e in (x.variance, x.floor)
    )
    bound = None if x.worst is None else bounds.extreme(x.worst, dims, keep)
    return Quantity(value, variance, floor, bound, probes, x.held, place=place)


def _axis(name: str, args: Any, kwargs: Any) -> int:
    """The dim of max, min, sort or topk."""
    position = 2 if name == "topk" else 1
    numbers = [a for a in args[position:] if isinstance(a, int) and not isinstance(a, bool)]
    return int(kwargs.get("dim", numbers[0] if numbers else -1))


def _picked(value: Any, x: Quantity, dim: int, place: int) -> list[Quantity]:
    """Values and indices of sort, topk, max and min along a dim; the order is taken as in truth."""
    found, index = value
    keep = found.dim() == x.value.dim()
    at = index if keep else index.unsqueeze(dim)

    def gathered(e: Tensor | None, lead: int = 0) -> Tensor | None:
        if e is None:
            return None
        axis = dim if dim < 0 else dim + lead
        where = at.expand(e.shape[0], *at.shape) if lead else at
        out = e.gather(axis, where)
        return out if keep else out.squeeze(axis)

    moved = Quantity(
        found, gathered(x.variance), gathered(x.floor), gathered(x.worst), gathered(x.probes, 1), x.held, place=place
    )
    return [moved, Quantity(index)]


def accumulate(
    roundoff: Roundoff, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int
) -> Quantity:
    """Scattered sums: as many terms as fall on an element, in any order."""
    value = operator(*values(args), **values(kwargs))
    if not value.is_floating_point():
        return Quantity(value, probes=probed(operator, args, kwargs))

    def over(change: Callable[[Quantity], Any]) -> Tensor:
        filled = [change(a) if isinstance(a, Quantity) and a.is_float else a for a in args]
        return operator(*values(filled), **values(kwargs))

    def of(attribute: str) -> Tensor | None:
        if not any_error(args, attribute):
            return None
        return over(lambda q: torch.zeros_like(q.value) if getattr(q, attribute) is None else getattr(q, attribute))

    q = Quantity(value, of("variance"), of("floor"), of("worst"), probed(operator, args, kwargs), place=place)
    if not roundoff.contract.rounds:
        return q
    terms = over(lambda a: torch.ones_like(a.value)) - 1
    squares = over(lambda a: a.value.square())
    largest = over(bounds.magnitude) if roundoff.worst else None
    return roundoff.running_sum(q, squares, terms.clamp_min(0.0), largest, place)


def _matmul_probes(x: Quantity, y: Quantity) -> Tensor | None:
    """The product in each probe; whichever operand is the same in all is not repeated."""
    if x.probes is None and y.probes is None:
        return None
    left, right = (q.value if q.probes is None else q.probes for q in (x, y))
    if x.value.dim() == y.value.dim() and x.value.dim() >= 2:
        return torch.matmul(left, right)
    return run_lifted(torch.matmul, (left, right), {}, (x.probes is not None, y.probes is not None))


def _drift(x: Tensor, y: Tensor, total: Tensor) -> Tensor | None:
    """The sum of squares of x @ y's partial sums, as straight lines between some of them, in the worse direction.

    Either end may be where a kernel starts; None where there are too few terms to have an order.
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


def _scaled(q: Quantity, factor: float) -> Quantity:
    if factor == 1:
        return q
    return q.with_(
        value=q.value * factor,
        variance=None if q.variance is None else q.variance * factor**2,
        floor=None if q.floor is None else q.floor * factor**2,
        worst=None if q.worst is None else q.worst * abs(factor),
        probes=None if q.probes is None else q.probes * factor,
    )


def _added(x: Quantity, y: Quantity, place: int) -> Quantity:
    value = x.value + y.value

    def wide(e: Tensor | None) -> Tensor | None:
        return None if e is None else e.expand_as(value)

    return Quantity(
        value, wide(plus(x.variance, y.variance)), wide(plus(x.floor, y.floor)), wide(plus(x.worst, y.worst)),
        probed(torch.ops.aten.add.Tensor, (x, y), {}), place=place,
    )  # fmt: skip
