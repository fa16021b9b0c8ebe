"""Expansion, Enclosure: true tensors as pairs of float64, and the distance of a kernel's tensor from them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Expansion:
    """The unevaluated sum ``high + low``, to about 106 bits; both float64 on the CPU, in the tensor's shape.

    Where the true value is infinite or NaN, ``high`` is, and ``low`` is 0; one beyond float64's range is +-inf.
    """

    high: Tensor
    low: Tensor

    def error(self, got: Tensor) -> Tensor:
        """``got - (high + low)`` in float64, exact but for its last rounding; 0 for equal infinities and for two NaNs.

        If only one of them is finite, or they are different infinities, it is +-inf (inf for a NaN).
        """
        x = got.detach().to("cpu", torch.float64)
        difference = x - self.high
        part = x - difference  # what rounding took from the difference, by Knuth's two-sum
        lost = (x - (difference + part)) + (part - self.high)
        signed = difference + (torch.where(lost.isfinite(), lost, 0.0) - self.low)
        same = (x == self.high) | (x.isnan() & self.high.isnan())
        outside = ~(x.isfinite() & self.high.isfinite())
        apart = torch.where(difference.isnan(), torch.inf, difference)
        return torch.where(outside, torch.where(same, 0.0, apart), signed)


@dataclass(frozen=True)
class Enclosure(Expansion):
    """Balls: the truth is within ``radius`` (proven, rounded up) of ``high + low``.

    Where nothing is known, ``high`` is NaN and ``radius`` inf; where the truth is NaN or infinite, ``radius`` is 0.
    ``undecided`` marks elements whose radius is larger than requested: they cannot be checked.
    """

    radius: Tensor
    undecided: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.bool))
    bits: int = 0
