"""Low: values below the smallest normal number of their format, where a rounding error is absolute, or all is lost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradoracle.contract import SMALLEST_SUBNORMAL


@dataclass(frozen=True)
class Low:
    """Values below the smallest normal number of their format.

    Attributes:
        where: True for them.
        spacing: of the subnormal numbers.
        flush: whether they may become 0 instead.
        mean_square: of the absolute error; 0 elsewhere.
        bound: of the absolute error; 0 elsewhere.
    """

    where: Tensor
    spacing: float
    flush: bool
    mean_square: Tensor
    bound: Tensor

    def replace(self, noise: Tensor, carried: Tensor, factors: Tensor, drawn: Tensor) -> None:
        """Put the errors of such values into ``noise`` [R, *shape], in place.

        They are those of rounding ``carried``, [*shape] or [R, *shape], times a factor to a multiple of the spacing, or
        of losing it.
        """
        runs, places = noise.view(len(noise), -1), self.where.expand(noise.shape[1:]).reshape(-1).nonzero()[:, 0]
        if self.spacing == SMALLEST_SUBNORMAL["float64"]:  # float64 arithmetic has rounded them already
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
