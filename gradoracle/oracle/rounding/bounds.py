"""Worst case: a running error analysis with every rounding at its worst and every sign against us.

The bounds are not first order: where an operator is monotone on the interval, its ends are evaluated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradoracle.oracle.rounding.independent import odds, secant_change, slopes
from gradoracle.oracle.rounding.quantity import Quantity, any_error, plus, quantities

ATTRIBUTE = "worst"


def elementwise(name: str, operator: Callable[..., Any], args: Any, kwargs: Any, value: Tensor) -> Tensor | None:
    """The bound of an elementwise result from those of its arguments."""
    if not any_error(args, ATTRIBUTE):
        return None
    leaves = [a for a in args if isinstance(a, Quantity)]
    if name in ("add", "sub", "rsub") and not (set(kwargs) - {"alpha"}):
        alpha = abs(float(kwargs.get("alpha", 1)))
        scale = [alpha if i == (0 if name == "rsub" else 1) else 1.0 for i in range(2)]
        parts = [a.worst * s for a, s in zip(args, scale) if isinstance(a, Quantity) and a.worst is not None]  # noqa: B905
        return plus(*parts)
    if name == "mul" and len(leaves) == 2:
        (x, y), (ex, ey) = (q.value.abs() for q in leaves), (q.worst for q in leaves)
        both = ex * ey if ex is not None and ey is not None else None
        return plus(None if ex is None else ex * y, None if ey is None else x * ey, both)
    if name == "div" and len(leaves) == 2 and not kwargs:
        (x, y), (ex, ey) = (q.value.abs() for q in leaves), (q.worst for q in leaves)
        top = x if ex is None else x + ex
        bottom = y if ey is None else (y - ey).clamp_min(0.0)
        return torch.where(top > 0, top / bottom - x / y, 0.0)
    total: Tensor | None = None
    found = {id(q): s for q, s in slopes(operator, args, kwargs, value.shape)}
    for quantity in quantities(args):
        if quantity.worst is None:
            continue
        ends = secant_change(operator, args, kwargs, quantity, quantity.worst, value)
        slope = found.get(id(quantity))
        if slope is not None:  # inside the interval a function that is not monotone may move further than at its ends
            ends = torch.maximum(ends, torch.where(quantity.worst > 0, slope.abs() * quantity.worst, 0.0))
        total = plus(total, ends)
    return total


def kinked(operator: Callable[..., Any], args: Any, kwargs: Any, value: Tensor) -> Tensor | None:
    """The bound after relu, abs, clamp: none of them moves further than its argument does."""
    (quantity,) = quantities(args)[:1]
    return None if quantity.worst is None else quantity.worst.expand_as(value)


def magnitude(quantity: Quantity) -> Tensor:
    """The largest size that the value may have."""
    return quantity.value.abs() if quantity.worst is None else quantity.value.abs() + quantity.worst


def product(x: Quantity, y: Quantity) -> tuple[Tensor | None, Tensor]:
    """The bound of a matrix product, and |x| @ |y| at the operands' largest."""
    largest = torch.matmul(magnitude(x), magnitude(y))
    if x.worst is None and y.worst is None:
        return None, largest
    return (largest - torch.matmul(x.value.abs(), y.value.abs())).clamp_min(0.0), largest


def softmax(value: Tensor, x: Tensor, relative: Tensor, dim: int) -> Tensor:
    """The bound of a softmax whose logits are off by at most ``relative``: one moves one way, all others the other."""
    log_odds, _ = odds(x, dim)
    move = relative + relative.amax(dim, keepdim=True)
    moved = torch.maximum(torch.sigmoid(log_odds + move) - value, value - torch.sigmoid(log_odds - move))
    return torch.where(x.isfinite(), moved.clamp_min(0.0), 0.0)


def extreme(own: Tensor, dims: Any, keep: bool) -> Tensor:
    """The bound of a maximum or minimum: it moves no further than any element does."""
    return torch.amax(own, dims, keep)


def product_of_one(operator: Callable[..., Any], args: Any, kwargs: Any, value: Tensor) -> Tensor | None:
    """The bound of prod and cumprod: all factors at their largest."""
    quantity = quantities(args)[0]
    if quantity.worst is None:
        return None
    return operator(magnitude(quantity), *args[1:], **kwargs) - operator(quantity.value.abs(), *args[1:], **kwargs)
