"""SDPA: scaled dot-product attention: definition, cases, algorithms, properties and kernels."""

from __future__ import annotations

from gradoracle.properties.sdpa.algorithms import ALGORITHMS
from gradoracle.properties.sdpa.catalogue import PROPERTIES
from gradoracle.properties.sdpa.definition import sdpa
from gradoracle.properties.sdpa.kernels import KERNELS
from gradoracle.properties.sdpa.strategy import DIMS, JOINT, OPTIONS

from gradoracle.model.family import family

__all__ = ["FAMILY", "KERNELS"]

FAMILY = family(
    sdpa, outputs=("o",), dims=DIMS, options=OPTIONS, joint=JOINT, algorithms=ALGORITHMS, properties=PROPERTIES
)
