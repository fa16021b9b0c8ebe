"""Expansion, Enclosure: true tensors as float64 pairs, and how far a kernel's tensor is from them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Expansion:
    """``high + low``, unevaluated, to about 106 bits; both float64 on the CPU, in the tensor's shape.

    ``high`` is +-inf or NaN, and ``low`` 0, where the true value is (or is finite and beyond float64's range: +-inf).
    """

    high: Tensor
    low: Tensor

    def error(self, got: Tensor) -> Tensor:
        """``got - (high + low)``, float64, exact but for its last rounding; 0 where both are the same infinity or NaN.

        Where one of them is finite and the other is not, or the two differ, it is +-inf (inf for a NaN).
        """
        x = _double(got)
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
    ``undecided`` marks the elements that are wider than was asked for: they can not be checked.
    """

    radius: Tensor
    undecided: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.bool))
    bits: int = 0

    def error_bounds(self, got: Tensor) -> tuple[Tensor, Tensor]:
        """A lower and an upper bound on ``|got - truth|``, float64; (0, inf) where nothing is known."""
        unknown = self.radius.isinf()
        size = self.error(got).abs()
        slack = torch.where(size.isfinite(), size * 2.0**-51, 0.0) + self.radius
        lower = (size - slack).clamp(min=0.0)
        return torch.where(unknown, 0.0, lower), torch.where(unknown, torch.inf, size + slack * (1 + 2.0**-51))


def _double(x: Tensor) -> Tensor:
    return x.detach().to("cpu", torch.float64)
