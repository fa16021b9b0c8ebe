"""Semi-CRF: log Z over labelled segmentations: definition, cases, properties, kernels, and readings of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradoracle.properties.semicrf.catalogue import PROPERTIES
from gradoracle.properties.semicrf.definition import semicrf
from gradoracle.properties.semicrf.readings.scalable import PLAIN, SemiCRF
from gradoracle.properties.semicrf.strategy import BESIDE_LARGE, DIMS, DOMAINS, JOINT

from gradoracle.model.family import family

if TYPE_CHECKING:
    from gradoracle.properties.semicrf.kernels import KERNELS

__all__ = ["FAMILY", "KERNELS"]

FAMILY = family(
    semicrf,
    outputs=("log_z",),
    dims=DIMS,
    domains=DOMAINS,
    joint=JOINT,
    algorithms={PLAIN: {}},
    alternatives=[("transition", "transition_by_duration")],
    properties=PROPERTIES,
    scalable=SemiCRF(),
    beside_large=BESIDE_LARGE,
)


def __getattr__(name: str) -> object:
    """``KERNELS``, which what judges does not import."""
    if name != "KERNELS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gradoracle.properties.semicrf import kernels

    return kernels.KERNELS
