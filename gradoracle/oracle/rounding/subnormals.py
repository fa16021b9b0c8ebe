"""Subnormals: values below the smallest normal number of a format, where errors are absolute or values flush to 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradoracle.model.formats import FORMATS
from gradoracle.oracle.rounding.quantity import Quantity

LOST_EARLY = 4  # exponentials that flush to zero also lose the last two binades of normal numbers
LEAST_SQUARE = 1e-300  # of an error; squares of smaller ones would underflow in float64


class Products(NamedTuple):
    """The products of a sum: their number, the sum of their squares and, for a bound, that of their sizes."""

    terms: Tensor | float
    squares: Tensor
    sizes: Tensor | None


@dataclass(frozen=True)
class Low:
    """Values below the smallest normal number of their format.

    Attributes:
        where: True for them.
        spacing: of the subnormal numbers.
        flush: whether they may become 0 instead.
        mean_square: of the absolute error; 0 elsewhere. None if it was not requested.
        bound: of the absolute error; 0 elsewhere. None if it was not requested.
    """

    where: Tensor
    spacing: float
    flush: bool
    mean_square: Tensor | None
    bound: Tensor | None

    def replace(self, noise: Tensor, carried: Tensor, factors: Tensor, drawn: Tensor) -> None:
        """Write the errors of such values into ``noise`` [R, *shape].

        They are those of rounding ``carried`` ([*shape] or [R, *shape]) times a factor to a multiple of the spacing, or
        of flushing it to 0.
        """
        runs, places = noise.view(len(noise), -1), self.where.expand(noise.shape[1:]).reshape(-1).nonzero()[:, 0]
        if self.spacing == FORMATS["float64"].smallest_subnormal:  # float64 arithmetic has rounded them already
            runs[:, places] = 0.0
            return
        every = len(places) == runs.shape[1]
        carried = carried.expand_as(noise).reshape(len(noise), -1)
        carried = carried if every else carried[:, places]
        step = self.spacing / factors.view(-1, 1)
        lost = (carried / step).round_().mul_(step)
        if self.flush:
            lost = torch.where(drawn.view(-1, 1) > 0, 0.0, lost)
        lost = lost.sub_(carried)
        if every:
            runs.copy_(lost)
        else:
            runs[:, places] = lost


def below_normal(
    q: Quantity,
    size: Tensor,
    dtype: str,
    flush: bool,
    may_be: Tensor | None,
    products: Products | None,
    variances: bool = True,
    worst: bool = True,
) -> Low | None:
    """Where ``q`` is below the smallest normal number of a format, or may flush, with the error there; None if nowhere.

    The error of a value far below the spacing is the value, not half the spacing. In a sum of products each product is
    rounded, and whatever a step flushes is lost; sums of numbers that the format holds are exact.

    Args:
        q: the quantity.
        size: of its value.
        dtype: the format's name.
        flush: whether subnormal values may become 0.
        may_be: where a kernel's value may be nonzero; None: where the value is.
        products: the products that it is the sum of.
        variances: whether the mean square is requested.
        worst: whether the bound is.
    """
    limit = FORMATS[dtype].smallest_normal * (LOST_EARLY if flush else 1)
    low = size < limit
    low &= (size > 0) if may_be is None else may_be
    if not low.any():
        return None
    spacing = FORMATS[dtype].smallest_subnormal
    terms, squares, sizes = Products(1.0, torch.zeros(()), None) if products is None else products
    mean_square = bound = None
    if variances:
        mean_square = size.square() if q.variance is None else size.square().add_(q.variance)
        if flush:
            mean_square = mean_square + squares.clamp_max(terms * limit**2)
        else:
            mean_square = (mean_square + squares).clamp_max(terms * spacing**2 / 12)
        mean_square = torch.where(low, mean_square.clamp_min(LEAST_SQUARE), 0.0)
    if worst and flush:
        bound = (size if q.worst is None else size + q.worst).clamp_min(spacing / 2)
        bound = bound if sizes is None else bound + sizes.clamp_max(terms * limit)
    elif worst:
        bound = torch.ones_like(size) * (terms * spacing / 2)
    bound = None if bound is None else torch.where(low, bound, 0.0)
    return Low(low, spacing, flush, mean_square, bound)
