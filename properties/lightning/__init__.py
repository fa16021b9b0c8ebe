"""Lightning: causal linear attention without decay: definition, cases, algorithms, properties and kernels."""

from __future__ import annotations

from gradoracle.properties.lightning.algorithms import ALGORITHMS
from gradoracle.properties.lightning.catalogue import PROPERTIES
from gradoracle.properties.lightning.definition import lightning
from gradoracle.properties.lightning.kernels import KERNELS
from gradoracle.properties.lightning.strategy import DIMS, JOINT

from gradoracle.model.family import family

__all__ = ["FAMILY", "KERNELS"]

FAMILY = family(
    lightning,
    outputs=("o", "state"),
    optional_outputs={"state": "return_state"},
    dims=DIMS,
    joint=JOINT,
    algorithms=ALGORITHMS,
    properties=PROPERTIES,
)
