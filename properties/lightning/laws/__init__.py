"""The properties of lightning attention, besides the universal ones."""

from __future__ import annotations

from gradoracle.properties.lightning.laws.causality import CAUSALITY
from gradoracle.properties.lightning.laws.identities import IDENTITIES
from gradoracle.properties.lightning.laws.multilinearity import MULTILINEARITY
from gradoracle.properties.lightning.laws.state import STATE
from gradoracle.properties.lightning.laws.symmetries import SYMMETRIES
from gradoracle.properties.lightning.laws.tile_shapes import TILE_SHAPES

LAWS = (*IDENTITIES, *STATE, *CAUSALITY, *SYMMETRIES, *MULTILINEARITY, *TILE_SHAPES)
