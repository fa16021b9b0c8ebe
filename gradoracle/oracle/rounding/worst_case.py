"""Worst case: a running error analysis with every rounding at its worst and all errors of one sign.

The bounds are not first order: where an operator is monotone on the interval, its ends are evaluated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradoracle.oracle.rounding.call import Call
from gradoracle.oracle.rounding.independent import centred, log_sum_of_others, secant_change, slopes
from gradoracle.oracle.rounding.quantity import Quantity, any_error, plus, quantities


def elementwise(call: Call, value: Tensor) -> Tensor | None:
    """The bound of an elementwise result from those of its arguments."""
    if not any_error(call.args, "worst"):
        return None
    name, args = call.name, call.args
    operands = [a for a in args if isinstance(a, Quantity)]
    if name in ("add", "sub") and not (set(call.kwargs) - {"alpha"}):
        return plus(
            *(
                a.worst * (abs(float(call.kwargs.get("alpha", 1))) if i == 1 else 1.0)
                for i, a in enumerate(args[:2])
                if isinstance(a, Quantity) and a.worst is not None
            )
        )
    if name == "mul" and len(operands) == 2:
        (x, y), (ex, ey) = (q.value.abs() for q in operands), (q.worst for q in operands)
        both = ex * ey if ex is not None and ey is not None else None
        return plus(None if ex is None else ex * y, None if ey is None else x * ey, both)
    if name == "div" and len(operands) == 2 and not call.kwargs:
        (x, y), (ex, ey) = (q.value.abs() for q in operands), (q.worst for q in operands)
        top = x if ex is None else x + ex
        bottom = y if ey is None else (y - ey).clamp_min(0.0)
        return torch.where(top > 0, top / bottom - x / y, 0.0)
    total: Tensor | None = None
    slope_of = {id(q): s for q, s in slopes(call, value.shape)}
    for quantity in quantities(args):
        if quantity.worst is None:
            continue
        ends = secant_change(call, quantity, quantity.worst, value)
        slope = slope_of.get(id(quantity))
        if slope is not None:  # inside the interval a function that is not monotone may move further than at its ends
            ends = torch.maximum(ends, torch.where(quantity.worst > 0, slope.abs() * quantity.worst, 0.0))
        total = plus(total, ends)
    return total


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
    x = centred(x, dim)
    above, below = x + relative, x - relative
    highest, lowest = (
        torch.sigmoid(torch.nan_to_num(own - log_sum_of_others(rest, dim), nan=0.0, posinf=1e300, neginf=-1e300))
        for own, rest in ((above, below), (below, above))
    )
    return torch.where(x.isfinite(), torch.maximum(highest - value, value - lowest).clamp_min(0.0), 0.0)


def log_sum(x: Tensor, relative: Tensor, dim: int) -> Tensor:
    """The bound of a log-sum-exp along ``dim`` of numbers that are off by at most ``relative``; the dim is kept."""
    x = centred(x, dim)
    at, above, below = (torch.logsumexp(each, dim, keepdim=True) for each in (x, x + relative, x - relative))
    return torch.nan_to_num(torch.maximum(above - at, at - below), nan=0.0)


def extreme(call: Call, x: Quantity) -> Tensor | None:
    """The bound of a maximum or minimum: that with every element at its largest and at its smallest."""
    if x.worst is None:
        return None
    rest = call.args[1:]
    ends = [call.operator(x.value + sign * x.worst, *rest, **call.kwargs) for sign in (1, -1)]
    return torch.nan_to_num(torch.maximum(*((end - call.value).abs() for end in ends)), nan=0.0)


def product_of_one(call: Call) -> Tensor | None:
    """The bound of prod and cumprod: all factors at their largest."""
    x, rest = call.sources[0], call.args[1:]
    if x.worst is None:
        return None
    return call.operator(magnitude(x), *rest, **call.kwargs) - call.operator(x.value.abs(), *rest, **call.kwargs)
