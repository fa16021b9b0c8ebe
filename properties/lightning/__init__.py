"""Lightning: causal linear attention without decay: definition, cases, algorithms, properties and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradoracle.properties.lightning.algorithms import ALGORITHMS
from gradoracle.properties.lightning.catalogue import PROPERTIES
from gradoracle.properties.lightning.definition import lightning
from gradoracle.properties.lightning.strategy import DIMS, JOINT

from gradoracle.model.family import family

if TYPE_CHECKING:
    from gradoracle.properties.lightning.kernels import KERNELS

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


def __getattr__(name: str) -> object:
    """``KERNELS``, which what judges does not import."""
    if name != "KERNELS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gradoracle.properties.lightning import kernels

    return kernels.KERNELS
