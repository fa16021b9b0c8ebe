"""The catalogue of the gated delta rule, by subject."""

from __future__ import annotations

from gradoracle.properties.gated_delta.catalogue.causality import CAUSALITY
from gradoracle.properties.gated_delta.catalogue.special_cases import SPECIAL_CASES
from gradoracle.properties.gated_delta.catalogue.state import STATE

PROPERTIES = (*CAUSALITY, *SPECIAL_CASES, *STATE)
