"""The properties of lightning attention alone."""

from __future__ import annotations

from gradoracle.properties.lightning.catalogue.causality import CAUSALITY
from gradoracle.properties.lightning.catalogue.identities import IDENTITIES
from gradoracle.properties.lightning.catalogue.multilinearity import MULTILINEARITY
from gradoracle.properties.lightning.catalogue.state import STATE
from gradoracle.properties.lightning.catalogue.symmetries import SYMMETRIES
from gradoracle.properties.lightning.catalogue.tile_shapes import TILE_SHAPES

PROPERTIES = (*IDENTITIES, *STATE, *CAUSALITY, *SYMMETRIES, *MULTILINEARITY, *TILE_SHAPES)
