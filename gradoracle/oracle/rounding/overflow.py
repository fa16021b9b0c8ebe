"""Overflow: where a value with its error exceeds the range of its format."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradoracle.model.formats import FORMATS
from gradoracle.oracle.rounding.quantity import Quantity

FAR = 8.0  # standard deviations that a correct kernel may be off


def beyond(
    q: Quantity,
    size: Tensor,
    dtype: str,
    before: float = 1.0,
    rounds_once: bool = False,
    terms: Sequence[Quantity] = (),
) -> Tensor | None:
    """Where a declared intermediate, with its budget, exceeds the range of its format; None if nowhere.

    Args:
        q: the quantity.
        size: of its value.
        dtype: the format's name.
        before: a factor that a correct kernel may multiply by after the product instead; the larger of the two counts.
        rounds_once: whether it exceeds the range only beyond the middle to where the next number would be.
        terms: those that it is the sum of, each of which is a number of the format, whatever its error.
    """
    if not size.numel():
        return None
    by = before if 0 < before < 1 else 1.0
    size, variance = size / by, None if q.variance is None else q.variance / by**2
    largest = float(size.max()) + (0.0 if variance is None else FAR * math.sqrt(float(variance.max())))
    if largest < FORMATS[dtype].largest / 2:
        return None
    furthest = size if variance is None else size + FAR * variance.sqrt()
    if terms:
        erring = [(term.value.abs(), term.variance) for term in terms if term.variance is not None]
        moved = [torch.minimum(FAR * e.sqrt(), (FORMATS[dtype].largest - x).clamp_min(0.0)) for x, e in erring]
        furthest = torch.minimum(furthest, sum(moved, size))
    margin = FORMATS[dtype].unit_roundoff * (0.5 if rounds_once else -4)
    found = (furthest > FORMATS[dtype].largest * (1 + margin)) & size.isfinite()
    return found if bool(found.any()) else None
