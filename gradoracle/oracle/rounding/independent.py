"""Independent variances: the variance of a result from those of its arguments, to first order."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradoracle.oracle.exact.trees import followed, leaves, refilled
from gradoracle.oracle.rounding.call import Call
from gradoracle.oracle.rounding.quantity import FAR, Quantity, any_error, plus, quantities, values

_NEARLY_LINEAR = 1e-4  # variance of a logit below which a softmax is linear over FAR deviations


def moved(call: Call, attribute: str) -> Any:
    """The errors after an operator that only moves values; the numbers it fills in have none."""
    if all(getattr(source, attribute) is None for source in call.sources):
        return None
    numbers = tuple([0.0 if isinstance(a, float) else a for a in call.args])
    if len(call.sources) == 1 and call.sources[0] is call.args[0]:
        return call.operator(getattr(call.sources[0], attribute), *numbers[1:], **call.kwargs)

    def error(x: Any) -> Any:
        if not isinstance(x, Quantity):
            return x
        own = getattr(x, attribute) if x.is_float else x.value
        return torch.zeros_like(x.value) if own is None else own

    return call.operator(*followed(error, numbers), **followed(error, call.kwargs))


def slopes(call: Call, shape: torch.Size, of_all: bool = False) -> list[tuple[Quantity, Tensor]]:
    """The derivative of an elementwise operator in each argument that has an error (in each float, if ``of_all``)."""
    flat = leaves(call.args)
    filled = values(flat)
    varied = [
        i
        for i, x in enumerate(flat)
        if isinstance(x, Quantity) and x.is_float and (of_all or x.variance is not None or x.worst is not None)
    ]
    if not varied:
        return []
    with torch.enable_grad():
        for i in varied:
            filled[i] = filled[i].expand(shape).detach().requires_grad_()
        out = call.operator(*refilled(call.args, filled), **values(call.kwargs))
        found = torch.autograd.grad(out.sum(), [filled[i] for i in varied], allow_unused=True)
    return [(flat[i], torch.zeros(shape) if s is None else s) for i, s in zip(varied, found, strict=True)]


def elementwise(call: Call, value: Tensor, attribute: str) -> Tensor | None:
    """The variance of an elementwise result; ``attribute`` is ``variance`` or ``floor``."""
    if not any_error(call.args, attribute):
        return None
    name, args = call.name, call.args
    operands = [a for a in args if isinstance(a, Quantity)]
    own = [getattr(q, attribute) for q in operands]
    if name in ("add", "sub") and not (set(call.kwargs) - {"alpha"}):
        return plus(
            *(
                getattr(a, attribute) * (float(call.kwargs.get("alpha", 1)) ** 2 if i == 1 else 1.0)
                for i, a in enumerate(args[:2])
                if isinstance(a, Quantity) and getattr(a, attribute) is not None
            )
        )
    if name == "mul" and len(operands) == 2:
        (x, y), (ex, ey) = (q.value for q in operands), own
        if operands[0] is operands[1]:
            return 4 * x.square() * ex
        both = ex * ey if ex is not None and ey is not None else None
        return plus(None if ex is None else ex * y.square(), None if ey is None else x.square() * ey, both)
    if name == "div" and len(operands) == 2 and not call.kwargs:
        ex, ey = own
        inverse = operands[1].value.square().reciprocal()
        return plus(None if ex is None else ex * inverse, None if ey is None else value.square() * ey * inverse)
    if name in ("exp", "exp2") and attribute == "variance":
        return exponential(value, operands[0].value, own[0], 1.0 if name == "exp" else math.log(2))
    total: Tensor | None = None
    for quantity, slope in slopes(call, value.shape):
        error = getattr(quantity, attribute)
        if error is not None:
            total = plus(total, torch.where(error > 0, slope.square() * error, 0.0))
    if total is not None and len(quantities(args)) == 1 and not total.isfinite().all():
        (quantity,) = quantities(args)  # an infinite slope, as that of sqrt at 0: take the secant
        secant = secant_change(call, quantity, getattr(quantity, attribute).sqrt(), value)
        total = torch.where(total.isfinite(), total, secant.square())
    return total


def exponential(value: Tensor, x: Tensor, own: Tensor, rate: float) -> Tensor:
    """The variance of an exponential: first order, and at least that of the secant over ``FAR`` deviations."""
    step = FAR * rate * own.sqrt()
    first = value * step
    far = torch.where(step > 0.1, torch.exp(rate * x + step) - value, first)
    return (torch.maximum(first, far) / FAR).square()


def secant_change(call: Call, quantity: Quantity, step: Tensor, value: Tensor) -> Tensor:
    """The larger change of a result when one argument moves by ``step`` up or down; 0 where neither is a number."""

    def at(sign: float) -> Tensor:
        shifted = tuple(a.value + sign * step if a is quantity else a for a in call.args)
        change = (call.operator(*values(shifted), **values(call.kwargs)) - value).abs()
        return torch.nan_to_num(change, nan=0.0)

    return torch.maximum(at(1.0), at(-1.0))


def kinked(call: Call, attribute: str) -> Tensor | None:
    """The variance after relu, abs, clamp: where the argument may lie on either side, the steeper one counts."""
    own = getattr(call.sources[0], attribute)
    if own is None:
        return None
    change = secant_change(call, call.sources[0], 4 * own.sqrt(), call.value)
    return torch.where(own > 0, (change / 4).square(), 0.0)


def chosen(call: Call, attribute: str) -> Tensor | None:
    """The error after maximum or minimum: the larger of the two, since either may win."""
    own = [getattr(a, attribute) if isinstance(a, Quantity) else None for a in call.args[:2]]
    if own[0] is None or own[1] is None:
        return plus(*own)
    return torch.maximum(*torch.broadcast_tensors(own[0], own[1]))


def product(x: Quantity, y: Quantity, attribute: str) -> Tensor | None:
    """The variance of a matrix product from those of its operands."""
    ex, ey = getattr(x, attribute), getattr(y, attribute)
    if ey is None:
        return None if ex is None else torch.matmul(ex, y.value.square())
    if ex is None:
        return torch.matmul(x.value.square(), ey)
    return torch.matmul(x.value.square() + ex, ey) + torch.matmul(ex, y.value.square())


def product_of_one(call: Call, attribute: str) -> Tensor | None:
    """The variance of prod and cumprod: that of each factor, times the square of the product of the others."""
    x, rest = call.sources[0], call.args[1:]
    own = getattr(x, attribute)
    if own is None:
        return None
    if call.name == "prod":
        with torch.enable_grad():
            leaf = x.value.detach().requires_grad_()
            (others,) = torch.autograd.grad(call.operator(leaf, *rest, **call.kwargs).sum(), [leaf])
        each = others.square() * own
        return each.sum(*rest[:2]) if rest else each.sum()
    if own.dim() and bool(((x.value == 0) & (own > 0)).any()):
        return _one_by_one(x.value.square(), own, rest[0])
    relative = torch.nan_to_num(own / x.value.square(), nan=0.0, posinf=0.0)
    return call.operator(x.value, *rest, **call.kwargs).square() * torch.cumsum(relative, rest[0])


def _one_by_one(squares: Tensor, own: Tensor, dim: int) -> Tensor:
    """The variance of running products; a factor that is 0 may have an error."""
    product = torch.ones_like(squares.select(dim, 0))
    variance = torch.zeros_like(product)
    found = []
    for square, error in zip(squares.unbind(dim), own.unbind(dim), strict=True):
        variance = variance * (square + error) + product * error
        product = product * square
        found.append(variance)
    return torch.stack(found, dim)


def softmax(value: Tensor, x: Tensor, relative: Tensor, dim: int) -> Tensor:
    """The variance of a softmax with logits of variance ``relative``: rows are normalised, so errors cancel in part.

    dP_j = P_j (e_j - sum_k P_k e_k), hence var P_j = P_j^2 ((1 - 2 P_j) r_j + sum_k P_k^2 r_k). If logits may move so
    far that another one leads in a kernel, the secant over ``FAR`` deviations counts where it is larger.
    """
    x, squares = centred(x, dim), value.square()
    shared = (squares * relative).sum(dim, keepdim=True)
    first = (squares * ((1 - 2 * value) * relative + shared)).clamp_min(0.0)
    if not bool((relative > _NEARLY_LINEAR).any()):
        return first
    others, reach = log_sum_of_others(x, dim), FAR * relative.sqrt()
    log_odds = torch.nan_to_num(x - others, nan=0.0, posinf=1e300, neginf=-1e300)
    # the largest logit is overtaken by what the others may become together, and a masked one becomes nothing
    moved = torch.maximum(log_sum_of_others(x + reach, dim) - others, others - log_sum_of_others(x - reach, dim))
    overtaken = torch.where(_largest(x, dim), torch.nan_to_num(moved, nan=0.0), 0.0)
    move = torch.hypot(reach, torch.maximum(FAR * shared.sqrt(), overtaken))
    far = torch.maximum(torch.sigmoid(log_odds + move) - value, value - torch.sigmoid(log_odds - move)) / FAR
    return torch.maximum(first, torch.where(x.isfinite(), far, 0.0).square())


def log_sum_of_others(x: Tensor, dim: int) -> Tensor:
    """For each element of a row the log-sum-exp of all others of it; -inf where there is none."""
    top = _largest(x, dim)
    rest = torch.logsumexp(torch.where(top, -torch.inf, x), dim, keepdim=True)
    total = torch.logsumexp(x, dim, keepdim=True)
    # no more than half of the total is lost: the largest is among the others
    without = total + torch.log1p(-torch.exp(torch.log_softmax(x, dim)).clamp_max(0.5))
    return torch.where(top, rest, without)


def centred(x: Tensor, dim: int) -> Tensor:
    """``x`` less the maximum of its row, so that a large one does not hide the differences; -inf where all are."""
    return torch.where(x.isfinite(), x - x.amax(dim, keepdim=True), x)


def _largest(x: Tensor, dim: int) -> Tensor:
    """The largest element of each row, the first of several."""
    return torch.zeros_like(x, dtype=torch.bool).scatter(dim, x.argmax(dim, keepdim=True), True)


def log_softmax(share: Tensor, own: Tensor, dim: int) -> Tensor:
    """The variance of a log-softmax: d log P_j = e_j - sum_k P_k e_k, with P the ``share`` of each element."""
    return ((1 - 2 * share) * own + (share.square() * own).sum(dim, keepdim=True)).clamp_min(0.0)


def extreme(value: Tensor, own: Tensor, x: Tensor, dims: list[int], keep: bool) -> Tensor:
    """The variance of a maximum or minimum: the largest among the elements that may be the extreme."""
    wide = value
    for dim in sorted(d % x.dim() for d in dims) if not keep else ():
        wide = wide.unsqueeze(dim)
    near = (x - wide).abs() <= FAR * own.sqrt()
    return torch.amax(torch.where(near, own, 0.0), dims, keep)


def undecided(call: Call, attribute: str) -> Tensor | None:
    """Where rounding may change a comparison. Sides that are equal in truth count as one and the same quantity."""
    if not any_error(call.args, attribute):
        return None
    sides = [(a.value, getattr(a, attribute)) if isinstance(a, Quantity) else (a, None) for a in call.args[:2]]
    if len(sides) < 2:
        return None
    gap = (sides[0][0] - sides[1][0]).abs()
    spread = plus(sides[0][1], sides[1][1])
    assert spread is not None
    return (gap <= FAR * spread.sqrt()) & (gap > 0) & gap.isfinite()


def selected(condition: Quantity, x: Any, y: Any, attribute: str) -> Tensor | None:
    """The error after ``where``: that of the side taken; where the condition is undecided, of both and of the jump."""
    own = [getattr(q, attribute) if isinstance(q, Quantity) else None for q in (x, y)]
    zero = torch.zeros((), dtype=torch.float64)
    total: Tensor | None = None
    if own[0] is not None or own[1] is not None:
        first, second = (zero if e is None else e for e in own)
        total = torch.where(condition.value, first, second)
    if condition.undecided is not None and attribute != "floor":
        jump = torch.nan_to_num((values(x) - values(y)).abs(), nan=0.0, posinf=1e150)
        jump = jump if attribute == "worst" else jump.square()
        both = plus(*own)
        turned = torch.where(condition.undecided, jump if both is None else jump + both, zero)
        total = turned if total is None else torch.maximum(*torch.broadcast_tensors(total, turned))
    return total
