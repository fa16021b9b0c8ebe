"""Choices: the indices that sort, topk, max, min and argmax may give where rounding does not tell values apart.

A correct kernel may order values that tie within its roundings in any way, unless the definition asks for a stable
order and they are equal as given. Each value of an index that was chosen so is kept with the value in truth, and every
operator that takes it is evaluated with each: what then differs is part of the budget.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradoracle.oracle.exact.graph import UnsupportedOperator
from gradoracle.oracle.exact.trees import followed
from gradoracle.oracle.rounding.call import Call
from gradoracle.oracle.rounding.quantity import FAR, Quantity, each_error, plus, values
from gradoracle.oracle.rounding.rounding_model import Roundoff

MOST = 256  # values that tie with one, above it or below
_LARGEST = 1e150  # a difference is at most this, so that its square is finite


def picked(roundoff: Roundoff, call: Call) -> list[Quantity]:
    """Values and indices of sort, topk, max and min along a dim.

    The value at a rank moves no further than the values that tie with it do.
    """
    x, (found, index) = call.args[0], call.value
    given = call.args[2 if call.name == "topk" else 1 :]
    numbers = [each for each in given if type(each) is int]
    dim = int(call.kwargs.get("dim", numbers[0] if numbers else -1))
    keep = found.dim() == x.value.dim()
    at = index if keep else index.unsqueeze(dim)
    others = _others(roundoff, call, x, at, dim)

    def gathered(e: Tensor | None, lead: int = 0) -> Tensor | None:
        if e is None:
            return None
        axis = dim if dim < 0 else dim + lead
        out = e.gather(axis, at.expand(e.shape[0], *at.shape) if lead else at)
        if not lead and others is not None:
            out = torch.stack([out, *(e.gather(axis, other) for other in others)]).amax(0)
        return out if keep else out.squeeze(axis)

    errors = each_error(lambda error: gathered(getattr(x, error)))
    moved = Quantity(found, **errors, probes=gathered(x.probes, 1), held=x.held, place=call.place)
    if others is not None and not keep:
        others = others.squeeze(dim if dim < 0 else dim + 1)
    return [moved, Quantity(index, others=others)]


def argument(roundoff: Roundoff, call: Call) -> Quantity:
    """The index of argmax and argmin."""
    x, index = call.args[0], call.value
    dim = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    if dim is None:
        x = replace(x, **{name: _flat(getattr(x, name)) for name in ("value", "variance", "worst")})
        at, dim = index.reshape(1), 0
    else:
        at = index if index.dim() == x.value.dim() else index.unsqueeze(dim)
    others = _others(roundoff, call, x, at, dim)
    return Quantity(index, others=None if others is None else others.reshape(-1, *index.shape))


def _flat(each: Tensor | None) -> Tensor | None:
    return None if each is None else each.reshape(-1)


def _descends(call: Call) -> bool:
    """Whether the largest value comes first."""
    if call.name == "sort":
        flags = [each for each in call.args[1:] if type(each) is bool]
        return bool(call.kwargs.get("descending", flags[-1] if flags else False))
    if call.name == "topk":
        return bool(call.kwargs.get("largest", call.args[3] if len(call.args) > 3 else True))
    return call.name in ("max", "argmax")


def _others(roundoff: Roundoff, call: Call, x: Quantity, index: Tensor, dim: int) -> Tensor | None:
    """[A, *index.shape], further indices that each rank may have; None where every rank is decided.

    Args:
        roundoff: the rounding model of the run; only one that carries variances looks for ties.
        call: the operator.
        x: the values that are ordered.
        index: [.., k, ..], the indices in truth.
        dim: the dim along which values are ordered.

    Raises:
        UnsupportedOperator: more than ``MOST`` values tie with one.
    """
    if not (roundoff.variances and x.is_float) or x.value.dim() == 0 or not x.value.numel():
        return None
    order = torch.argsort(x.value, dim=dim, descending=_descends(call), stable=True)
    ranked, count = x.value.gather(dim, order), index.shape[dim]
    variance, worst = (None if e is None else e.gather(dim, order) for e in (x.variance, x.worst))
    stable = call.kwargs.get("stable") is True
    length, found = ranked.shape[dim], [order.narrow(dim, 0, count)]
    for sign in (1, -1):
        for step in range(1, length):
            ranks = torch.arange(count) + sign * step
            inside = (ranks >= 0) & (ranks < length)
            if not inside.any():
                break
            shape = [-1 if d == dim % order.dim() else 1 for d in range(order.dim())]
            at = ranks.clamp(0, length - 1).view(shape).expand_as(index)
            near = inside.view(shape) & _ties(ranked, variance, worst, at, dim, stable)
            if not near.any():
                break
            if step > MOST:
                raise UnsupportedOperator(f"{call.name} of more than {MOST} values that tie", "rounding")
            found.append(torch.where(near, order.gather(dim, at), index))
    differing = [each for each in found if not torch.equal(each, index)]
    return torch.stack(differing) if differing else None


def _ties(ranked: Tensor, variance: Tensor | None, worst: Tensor | None, at: Tensor, dim: int, stable: bool) -> Tensor:
    """Whether the value at each of the first ranks and that at rank ``at`` may change places."""
    count = at.shape[dim]
    own, other = ranked.narrow(dim, 0, count), ranked.gather(dim, at)
    room = torch.zeros_like(own)
    if variance is not None:
        room = FAR * (variance.narrow(dim, 0, count) + variance.gather(dim, at)).sqrt()
    if worst is not None:
        room = torch.maximum(room, worst.narrow(dim, 0, count) + worst.gather(dim, at))
    equal, near = own == other, (own - other).abs() <= room
    return near & (room > 0) if stable else equal | near


def followed_through(roundoff: Roundoff, call: Call, found: Any) -> Any:
    """What an operator gives, with what it may give by other choices of the indices that it takes."""
    chosen = [q for q in call.sources if q.others is not None] if roundoff.variances else []
    if not chosen:
        return found
    several = isinstance(found, list)
    results: list[list[Tensor]] = []
    for q in chosen:
        for other in q.others if q.others is not None else ():

            def turned(leaf: Any, q: Quantity = q, other: Tensor = other) -> Any:
                return replace(leaf, value=other) if leaf is q else leaf

            args, kwargs = followed(turned, call.args), followed(turned, call.kwargs)
            given = call.operator(*values(args), **values(kwargs))
            results.append(list(given) if several else [given])
    own = found if several else [found]
    made = [
        _with_others(roundoff, each, torch.stack([given[place] for given in results])) for place, each in enumerate(own)
    ]
    return made if several else made[0]


def _with_others(roundoff: Roundoff, q: Quantity, others: Tensor) -> Quantity:
    """A result with what it may be instead [A, *shape]: a difference is an error; twice that between two others."""
    if q.value.dtype is torch.bool:
        turned = (others != q.value).any(0)
        return q if not turned.any() else replace(q, undecided=turned if q.undecided is None else q.undecided | turned)
    if not q.is_float:
        differing = [each for each in others if not torch.equal(each, q.value)]
        return replace(q, others=torch.stack(differing) if differing else None)
    apart = torch.where(others == q.value, 0.0, (others - q.value).abs())
    jump = torch.nan_to_num(apart, nan=0.0, posinf=_LARGEST).clamp_max(_LARGEST).amax(0)
    if not jump.any():
        return q
    worst = plus(q.worst, 2 * jump) if roundoff.worst else q.worst
    return replace(q, variance=plus(q.variance, jump.square()), worst=worst)
