"""The properties of the semi-CRF, besides the universal ones."""

from __future__ import annotations

from gradoracle.properties.semicrf.laws.boundaries import BOUNDARIES
from gradoracle.properties.semicrf.laws.convexity import CONVEXITY
from gradoracle.properties.semicrf.laws.gauges import GAUGES
from gradoracle.properties.semicrf.laws.invariance import INVARIANCES
from gradoracle.properties.semicrf.laws.length import LENGTH
from gradoracle.properties.semicrf.laws.marginals import MARGINALS
from gradoracle.properties.semicrf.laws.special_cases import SPECIAL_CASES

LAWS = (*MARGINALS, *BOUNDARIES, *GAUGES, *SPECIAL_CASES, *INVARIANCES, *CONVEXITY, *LENGTH)
