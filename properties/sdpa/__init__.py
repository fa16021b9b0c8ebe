"""SDPA: scaled dot-product attention: definition, cases, algorithms, properties and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradoracle.properties.sdpa.algorithms import ALGORITHMS
from gradoracle.properties.sdpa.catalogue import PROPERTIES
from gradoracle.properties.sdpa.definition import sdpa
from gradoracle.properties.sdpa.strategy import DIMS, JOINT, OPTIONS

from gradoracle.model.family import family

if TYPE_CHECKING:
    from gradoracle.properties.sdpa.kernels import KERNELS

__all__ = ["FAMILY", "KERNELS"]

FAMILY = family(
    sdpa, outputs=("o",), dims=DIMS, options=OPTIONS, joint=JOINT, algorithms=ALGORITHMS, properties=PROPERTIES
)


def __getattr__(name: str) -> object:
    """``KERNELS``, which what judges does not import."""
    if name != "KERNELS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gradoracle.properties.sdpa import kernels

    return kernels.KERNELS
