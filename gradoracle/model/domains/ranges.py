"""Ranges: where the values of a float input lie, whatever recipe samples them; a frozen dataclass for each."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class Range(ABC):
    """A map of sampled values into those that an input has, in float64 by + - * / and square roots: the same bits on
    every machine. Perturbed points, tangents and cotangents are not mapped.
    """

    @property
    def ends(self) -> tuple[float, float]:
        """What no value is below or above, in any dtype; infinite where there is no end."""
        return -math.inf, math.inf

    @abstractmethod
    def mapped(self, values: Tensor) -> Tensor:
        """The values of a sampled tensor, float64, of the same shape."""

    @property
    def source(self) -> str:
        """As it is written in a program."""
        return f"gradoracle.{self!r}"


@dataclass(frozen=True)
class Between(Range):
    """Values between ``low`` and ``high``: rates, decays, probabilities.

    Raises:
        ValueError: ``low`` is not below ``high``.
    """

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"Between has low {self.low} and high {self.high}; expected low < high")

    @property
    def ends(self) -> tuple[float, float]:
        """Both."""
        return self.low, self.high

    def mapped(self, values: Tensor) -> Tensor:
        """x to the place of 1/2 + x / (2 + 2 |x|) between the ends."""
        share = 0.5 + 0.5 * values / (1.0 + values.abs())
        return self.low + (self.high - self.low) * torch.where(values.isfinite(), share, (values > 0).double())


@dataclass(frozen=True)
class AtMost(Range):
    """Values of at most ``most``, below it by ``spread`` times what is sampled: logarithms of decays."""

    most: float = 0.0
    spread: float = 1.0

    @property
    def ends(self) -> tuple[float, float]:
        """The upper one."""
        return -math.inf, self.most

    def mapped(self, values: Tensor) -> Tensor:
        """x to most - spread |x|."""
        return self.most - self.spread * values.abs()


@dataclass(frozen=True)
class UnitRows(Range):
    """Rows of length 1 along the last dim, zero rows as they are: normalised keys."""

    def mapped(self, values: Tensor) -> Tensor:
        """Each row over its length."""
        largest = values.abs().amax(-1, keepdim=True)
        scaled = torch.where(largest > 0, values / torch.where(largest > 0, largest, 1.0), 0.0)
        square = torch.zeros_like(largest[..., 0])
        for column in scaled.unbind(-1):  # one after the other: a sum has no other order on another machine
            square = square + column * column
        length = square.sqrt()[..., None]
        return torch.where(length > 0, scaled / torch.where(length > 0, length, 1.0), 0.0)
