"""LSE: the log-sum-exp of attention scores: definition, cases, properties and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradoracle.properties.lse.catalogue import PROPERTIES
from gradoracle.properties.lse.definition import lse
from gradoracle.properties.lse.strategy import DIMS, DOMAINS, JOINT, OPTIONS

from gradoracle.model.family import family

if TYPE_CHECKING:
    from gradoracle.properties.lse.kernels import KERNELS

__all__ = ["FAMILY", "KERNELS"]

FAMILY = family(
    lse,
    outputs=("lse",),
    dims=DIMS,
    options=OPTIONS,
    domains=DOMAINS,
    joint=JOINT,
    divides={"G": "H"},
    together=[("q_segments", "kv_segments")],
    properties=PROPERTIES,
)


def __getattr__(name: str) -> object:
    """``KERNELS``, which what judges does not import."""
    if name != "KERNELS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gradoracle.properties.lse import kernels

    return kernels.KERNELS
