"""The properties of SDPA, besides the universal ones."""

from __future__ import annotations

from gradoracle.properties.sdpa.laws.differences import DIFFERENCES
from gradoracle.properties.sdpa.laws.identities import IDENTITIES
from gradoracle.properties.sdpa.laws.masks import MASKS
from gradoracle.properties.sdpa.laws.scaling import SCALINGS
from gradoracle.properties.sdpa.laws.statistics import STATISTICS
from gradoracle.properties.sdpa.laws.symmetries import SYMMETRIES

LAWS = (*IDENTITIES, *SYMMETRIES, *MASKS, *SCALINGS, *STATISTICS, *DIFFERENCES)
