"""The gated delta rule: a recurrence over tokens: definition, cases, algorithm, properties and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradoracle.properties.gated_delta.algorithms import ALGORITHMS
from gradoracle.properties.gated_delta.catalogue import PROPERTIES
from gradoracle.properties.gated_delta.definition import gated_delta
from gradoracle.properties.gated_delta.strategy import BESIDE_LARGE, DIMS, DOMAINS, JOINT, OPTIONS

from gradoracle.model.family import family

if TYPE_CHECKING:
    from gradoracle.properties.gated_delta.kernels import KERNELS

__all__ = ["FAMILY", "KERNELS"]

FAMILY = family(
    gated_delta,
    outputs=("o", "state"),
    optional_outputs={"state": "return_state"},
    dims=DIMS,
    options=OPTIONS,
    domains=DOMAINS,
    joint=JOINT,
    algorithms=ALGORITHMS,
    properties=PROPERTIES,
    beside_large=BESIDE_LARGE,
)


def __getattr__(name: str) -> object:
    """``KERNELS``, which what judges does not import."""
    if name != "KERNELS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gradoracle.properties.gated_delta import kernels

    return kernels.KERNELS
