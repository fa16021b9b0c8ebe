"""Semi-CRF: log Z over labelled segmentations: definition, cases, properties, kernels, and readings of its own."""

from __future__ import annotations

from gradoracle.properties.semicrf.catalogue import PROPERTIES
from gradoracle.properties.semicrf.definition import semicrf
from gradoracle.properties.semicrf.kernels import KERNELS
from gradoracle.properties.semicrf.readings.scalable import PLAIN, SemiCRF
from gradoracle.properties.semicrf.strategy import BESIDE_LARGE, DIMS, DOMAINS, JOINT

from gradoracle.model.family import family

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
