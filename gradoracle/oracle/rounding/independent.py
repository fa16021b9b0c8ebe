"""Independent variances: how the variance of a result follows from those of the arguments, to first order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradoracle.oracle.exact.trees import leaves, refilled
from gradoracle.oracle.rounding.quantity import Quantity, any_error, errors, plus, quantities, values

FAR = 8.0  # standard deviations that a correct kernel may be off: what they can turn is not decided


def moved(operator: Callable[..., Any], args: Any, kwargs: Any, sources: Sequence[Quantity], attribute: str) -> Any:
    """The errors after an operator that only moves values, those of ``sources``; what it fills in carries none."""
    if all(getattr(source, attribute) is None for source in sources):
        return None
    numbers = tuple([0.0 if isinstance(a, float) else a for a in args])
    if len(sources) == 1 and sources[0] is args[0]:
        return operator(getattr(sources[0], attribute), *numbers[1:], **kwargs)
    return operator(*errors(numbers, attribute), **errors(kwargs, attribute))


def slopes(
    operator: Callable[..., Any], args: Any, kwargs: Any, shape: torch.Size, of_all: bool = False
) -> list[tuple[Quantity, Tensor]]:
    """Each erring argument of an elementwise operator (each, if ``of_all``) with the derivative by it."""
    flat = leaves(args)
    floats = [i for i, leaf in enumerate(flat) if isinstance(leaf, Quantity) and leaf.is_float]
    erring = [i for i in floats if of_all or _errs(flat[i])]
    filled = [leaf.value if isinstance(leaf, Quantity) else leaf for leaf in flat]
    with torch.enable_grad():
        for i in erring:
            filled[i] = filled[i].expand(shape).detach().requires_grad_()
        out = operator(*refilled(args, filled), **values(kwargs))
        found = torch.autograd.grad(out.sum(), [filled[i] for i in erring], allow_unused=True) if erring else ()
    return [(flat[i], torch.zeros(shape) if s is None else s) for i, s in zip(erring, found, strict=True)]


def elementwise(
    name: str, operator: Callable[..., Any], args: Any, kwargs: Any, value: Tensor, attribute: str
) -> Tensor | None:
    """The variance of an elementwise result; ``attribute`` is ``variance`` or ``floor``."""
    if not any_error(args, attribute):
        return None
    leaves = [a for a in args if isinstance(a, Quantity)]
    of = lambda q: getattr(q, attribute)  # noqa: E731
    if name in ("add", "sub", "rsub") and not (set(kwargs) - {"alpha"}):
        alpha = float(kwargs.get("alpha", 1))
        scale = [alpha**2 if i == (0 if name == "rsub" else 1) else 1.0 for i in range(2)]
        parts = [of(a) * s for a, s in zip(args, scale) if isinstance(a, Quantity) and of(a) is not None]  # noqa: B905
        return plus(*parts)
    if name == "mul" and len(leaves) == 2:
        (x, y), (ex, ey) = (q.value for q in leaves), (of(q) for q in leaves)
        if leaves[0] is leaves[1]:
            return 4 * x.square() * ex
        both = ex * ey if ex is not None and ey is not None else None
        return plus(None if ex is None else ex * y.square(), None if ey is None else x.square() * ey, both)
    if name == "div" and len(leaves) == 2 and not kwargs:
        (_, y), (ex, ey) = (q.value for q in leaves), (of(q) for q in leaves)
        inverse = y.square().reciprocal()
        return plus(None if ex is None else ex * inverse, None if ey is None else value.square() * ey * inverse)
    if name in ("exp", "exp2") and attribute == "variance":
        return exponential(value, leaves[0].value, of(leaves[0]), 1.0 if name == "exp" else math.log(2))
    total: Tensor | None = None
    for quantity, slope in slopes(operator, args, kwargs, value.shape):
        own = of(quantity)
        if own is not None:
            total = plus(total, torch.where(own > 0, slope.square() * own, 0.0))
    if total is not None and len(quantities(args)) == 1 and not total.isfinite().all():
        (quantity,) = quantities(args)  # a slope that is infinite, as that of sqrt at 0: take the secant
        secant = secant_change(operator, args, kwargs, quantity, of(quantity).sqrt(), value)
        total = torch.where(total.isfinite(), total, secant.square())
    return total


def exponential(value: Tensor, x: Tensor, own: Tensor, rate: float) -> Tensor:
    """The variance of an exponential: first order, but never less than the secant over ``FAR`` deviations explains."""
    step = FAR * rate * own.sqrt()
    first = value * step
    far = torch.where(step > 0.1, torch.exp(rate * x + step) - value, first)
    return (torch.maximum(first, far) / FAR).square()


def secant_change(
    operator: Callable[..., Any], args: Any, kwargs: Any, quantity: Quantity, step: Tensor, value: Tensor
) -> Tensor:
    """The larger change of a result when one argument moves by ``step`` up or down; 0 where neither is a number."""

    def at(sign: float) -> Tensor:
        shifted = tuple(a.value + sign * step if a is quantity else a for a in args)
        change = (operator(*values(shifted), **values(kwargs)) - value).abs()
        return torch.nan_to_num(change, nan=0.0)

    return torch.maximum(at(1.0), at(-1.0))


def kinked(operator: Callable[..., Any], args: Any, kwargs: Any, value: Tensor, attribute: str) -> Tensor | None:
    """The variance after relu, abs, clamp: the steeper side counts where the argument may lie on either."""
    quantity = quantities(args)[0]
    own = getattr(quantity, attribute)
    if own is None:
        return None
    step = 4 * own.sqrt()
    change = secant_change(operator, args, kwargs, quantity, step, value)
    return torch.where(own > 0, (change / 4).square(), 0.0)


def chosen(args: Any, attribute: str) -> Tensor | None:
    """The variance after maximum or minimum: the larger one where either may win, else a bound by both."""
    x, y = (a if isinstance(a, Quantity) else None for a in args[:2])
    own = [getattr(q, attribute) if q is not None else None for q in (x, y)]
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


def product_of_one(
    name: str, operator: Callable[..., Any], args: Any, kwargs: Any, x: Quantity, attribute: str
) -> Tensor | None:
    """The variance of prod and cumprod: each factor's, times the square of the product of the others."""
    own = getattr(x, attribute)
    if own is None:
        return None
    if name == "prod":
        ((_, others),) = slopes_of_all(operator, args, kwargs, x)
        each = others.square() * own
        return each.sum() if len(args) < 2 else each.sum(args[1], *args[2:3])
    value = operator(x.value, *args[1:], **kwargs)
    return value.square() * torch.cumsum(torch.nan_to_num(own / x.value.square(), nan=0.0, posinf=0.0), args[1])


def slopes_of_all(operator: Callable[..., Any], args: Any, kwargs: Any, x: Quantity) -> list[tuple[Quantity, Tensor]]:
    """The derivative of the one result that each element goes into."""
    with torch.enable_grad():
        leaf = x.value.detach().requires_grad_()
        (slope,) = torch.autograd.grad(operator(leaf, *args[1:], **kwargs).sum(), [leaf])
    return [(x, slope)]


def softmax(value: Tensor, x: Tensor, relative: Tensor, dim: int) -> Tensor:
    """The variance of a softmax whose logits have variance ``relative``: rows are normalised, so errors cancel in part.

    dP_j = P_j (e_j - sum_k P_k e_k), hence var P_j = P_j^2 ((1 - 2 P_j) r_j + sum_k P_k^2 r_k). Where logits may
    move far (one that is behind in truth leads in a kernel) the secant over ``FAR`` deviations counts if it is larger.
    """
    squares = value.square()
    shared = (squares * relative).sum(dim, keepdim=True)
    first = (squares * ((1 - 2 * value) * relative + shared)).clamp_min(0.0)
    if not bool((relative > _NEARLY_LINEAR).any()):
        return first
    log_odds, top = odds(x, dim)
    move = FAR * (relative + torch.maximum(shared, torch.where(top, relative.amax(dim, keepdim=True), 0.0))).sqrt()
    far = torch.maximum(torch.sigmoid(log_odds + move) - value, value - torch.sigmoid(log_odds - move)) / FAR
    return torch.maximum(first, torch.where(x.isfinite(), far, 0.0).square())


_NEARLY_LINEAR = 1e-4  # variance of a logit below which a softmax is linear over FAR deviations


def odds(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """log P / (1 - P) of each element of a softmax, and which elements are the largest of their row."""
    top = torch.zeros_like(x, dtype=torch.bool).scatter(dim, x.argmax(dim, keepdim=True), True)
    rest = torch.logsumexp(torch.where(top, -torch.inf, x), dim, keepdim=True)
    log_share = torch.log_softmax(x, dim)
    found = torch.where(top, x - rest, log_share - torch.log1p(-torch.exp(log_share)))
    return torch.nan_to_num(found, nan=0.0, posinf=1e300, neginf=-1e300), top


def log_softmax(share: Tensor, own: Tensor, dim: int) -> Tensor:
    """The variance of a log-softmax: d log P_j = e_j - sum_k P_k e_k, with P the ``share`` of each element."""
    return ((1 - 2 * share) * own + (share.square() * own).sum(dim, keepdim=True)).clamp_min(0.0)


def extreme(value: Tensor, own: Tensor, x: Tensor, dims: Any, keep: bool) -> Tensor:
    """The variance of a maximum or minimum: the largest among the elements that may be the extreme."""
    wide = value if keep else _keep(value, dims, x.dim())
    near = (x - wide).abs() <= FAR * own.sqrt()
    return torch.amax(torch.where(near, own, 0.0), dims, keep)


def undecided(name: str, args: Any, attribute: str = "variance") -> Tensor | None:
    """Where rounding may turn a comparison. Sides that are equal in truth are taken as one and the same quantity."""
    if not any_error(args, attribute):
        return None
    sides = [(a.value, getattr(a, attribute)) if isinstance(a, Quantity) else (a, None) for a in args[:2]]
    if len(sides) < 2:
        return None
    gap = (sides[0][0] - sides[1][0]).abs()
    spread = plus(sides[0][1], sides[1][1])
    assert spread is not None
    return (gap <= FAR * spread.sqrt()) & (gap > 0) & gap.isfinite()


def selected(condition: Quantity, x: Any, y: Any, attribute: str) -> Tensor | None:
    """The variance after ``where``; both sides may come where the condition is undecided."""
    parts = [q if isinstance(q, Quantity) else None for q in (x, y)]
    own = [getattr(q, attribute) if q is not None else None for q in parts]
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


def _keep(x: Tensor, dims: Any, rank: int) -> Tensor:
    for dim in sorted(d % rank for d in (dims or range(rank))):
        x = x.unsqueeze(dim)
    return x


def _errs(quantity: Quantity) -> bool:
    return quantity.variance is not None or quantity.worst is not None
