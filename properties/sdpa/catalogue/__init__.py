"""The properties of SDPA alone."""

from __future__ import annotations

from gradoracle.properties.sdpa.catalogue.differences import DIFFERENCES
from gradoracle.properties.sdpa.catalogue.identities import IDENTITIES
from gradoracle.properties.sdpa.catalogue.masks import MASKS
from gradoracle.properties.sdpa.catalogue.scaling import SCALINGS
from gradoracle.properties.sdpa.catalogue.statistics import STATISTICS
from gradoracle.properties.sdpa.catalogue.symmetries import SYMMETRIES

PROPERTIES = (*IDENTITIES, *SYMMETRIES, *MASKS, *SCALINGS, *STATISTICS, *DIFFERENCES)
