"""Formats: the spacing of their numbers, and which values are among them."""

from __future__ import annotations

import torch
from torch import Tensor

from gradoracle.oracle.rounding.probes import mixed


def half_spacing(size: Tensor, unit: float) -> Tensor:
    """Half the distance between neighbours of a format with unit roundoff ``unit`` at magnitudes ``size``."""
    _, exponent = torch.frexp(size)
    return torch.ldexp(torch.where(size > 0, unit, 0.0).to(size.dtype), exponent - 1)


def held_by(value: Tensor, bits: int) -> bool:
    """Whether every number is one of a format of ``bits`` bits (its range is not considered)."""
    significand, _ = torch.frexp(value)
    scaled = significand * 2.0**bits
    return bool((scaled == scaled.round()).all())


def hash_of(number: float) -> int:
    """The place of a constant: the same number is rounded once, wherever it is used."""
    return mixed(*float(number).as_integer_ratio())
