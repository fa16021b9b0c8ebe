"""Attention: what families of queries and keys have in common: the factor of their products, who sees whom, and keys
that can be shifted exactly."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.model.contract import LARGEST, PRECISION_BITS, SMALLEST_SUBNORMAL


def scale_of(sample: Sample) -> float:
    """The factor of q k^T: the option, or 1 / sqrt(D)."""
    scale = sample.options["scale"]
    return 1 / math.sqrt(sample.inputs["q"].shape[-1]) if scale is None else float(scale)


def seen(queries: int, keys: int, causal: bool) -> Tensor:
    """[T] how many keys each query sees."""
    if not causal:
        return torch.full((queries,), keys)
    return (torch.arange(queries) + keys - queries + 1).clamp(0, keys)


def coarse_keys(k: Tensor, dtype: str) -> tuple[Tensor | None, float]:
    """Keys on a grid so coarse that keys and shifted keys are held exactly, and the shift (a power of two)."""
    largest = float(k.double().abs().max())
    shift = 2.0 ** (math.frexp(largest)[1] - 2) if largest > 0 else 1.0  # a quarter to a half of the largest
    if 4 * (largest + shift) > LARGEST[dtype]:
        return None, shift
    grid = max(8 * shift * 2.0 ** -PRECISION_BITS[dtype], SMALLEST_SUBNORMAL[dtype])
    return ((k.double() / grid).round() * grid).to(k.dtype), max(shift, grid)
