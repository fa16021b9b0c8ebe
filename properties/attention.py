"""Attention: what families of queries and keys have in common: the factor of their products, and who sees whom."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample


def scale_of(sample: Sample) -> float:
    """The factor of q k^T: the option, or 1 / sqrt(D)."""
    scale = sample.options["scale"]
    return 1 / math.sqrt(sample.inputs["q"].shape[-1]) if scale is None else float(scale)


def seen(queries: int, keys: int, causal: bool) -> Tensor:
    """[T] how many keys each query sees."""
    if not causal:
        return torch.full((queries,), keys)
    return (torch.arange(queries) + keys - queries + 1).clamp(0, keys)
