"""The properties of the semi-CRF alone."""

from __future__ import annotations

from gradoracle.properties.semicrf.catalogue.boundaries import BOUNDARIES
from gradoracle.properties.semicrf.catalogue.convexity import CONVEXITY
from gradoracle.properties.semicrf.catalogue.gauges import GAUGES
from gradoracle.properties.semicrf.catalogue.invariance import INVARIANCES
from gradoracle.properties.semicrf.catalogue.length import LENGTH
from gradoracle.properties.semicrf.catalogue.marginals import MARGINALS
from gradoracle.properties.semicrf.catalogue.special_cases import SPECIAL_CASES

PROPERTIES = (*MARGINALS, *BOUNDARIES, *GAUGES, *SPECIAL_CASES, *INVARIANCES, *CONVEXITY, *LENGTH)
