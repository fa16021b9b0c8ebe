"""LSE: the log-sum-exp of attention scores: definition, cases, properties and kernels."""

from __future__ import annotations

from gradoracle.properties.lse.catalogue import PROPERTIES
from gradoracle.properties.lse.definition import lse
from gradoracle.properties.lse.kernels import KERNELS
from gradoracle.properties.lse.strategy import DIMS, DOMAINS, JOINT, OPTIONS

from gradoracle.model.family import family

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
