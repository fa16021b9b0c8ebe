"""The properties of LSE, besides the universal ones."""

from __future__ import annotations

from gradoracle.properties.lse.laws.backwards import BACKWARDS
from gradoracle.properties.lse.laws.identities import IDENTITIES
from gradoracle.properties.lse.laws.masks import MASKS
from gradoracle.properties.lse.laws.symmetries import SYMMETRIES

LAWS = (*IDENTITIES, *MASKS, *SYMMETRIES, *BACKWARDS)
