"""Exactness: changes of a tensor that round nothing, and magnitudes from which on nothing underflows."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.model import layouts
from gradoracle.model.formats import FORMATS


def times(tensor: Tensor, factor: float) -> Tensor | None:
    """The tensor times a power of two, in its layout; None where that is not exact."""
    changed = layouts.scaled(tensor, factor)
    exact = tensor.double() * factor == changed.double()
    return changed if bool(exact.all()) else None


def silenced(tensors: Mapping[str, Tensor], kept: Collection[str]) -> dict[str, Tensor]:
    """The tensors, those not ``kept`` set to 0 and contiguous."""
    return {
        name: tensor if name in kept else torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def smallest_exact(dtype: str) -> float:
    """A magnitude above which neither a result in ``dtype`` nor what it is summed from underflows."""
    return FORMATS[dtype].smallest_normal * (2.0**40 if FORMATS[dtype].lowest <= FORMATS["float32"].lowest else 4.0)


def has_subnormals(sample: Sample) -> bool:
    """Whether an input or cotangent in 16 or 8 bits holds numbers below the smallest normal one of its dtype.

    A tensor core aligns products by the exponents of their operands, which for a subnormal one is that of the smallest
    normal number: what it cuts off a sum changes where a power of two makes the operand normal (measured on an H200).
    """
    tensors = (*sample.inputs.values(), *sample.cotangents.values())
    narrow = [t for t in tensors if t.is_floating_point() and t.element_size() <= 2]
    least = {t.dtype: FORMATS[str(t.dtype).removeprefix("torch.")].smallest_normal for t in narrow}
    return any(bool(((t != 0) & (t.abs().double() < least[t.dtype])).any()) for t in narrow)
