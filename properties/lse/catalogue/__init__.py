"""The properties of LSE alone."""

from __future__ import annotations

from gradoracle.properties.lse.catalogue.backwards import BACKWARDS
from gradoracle.properties.lse.catalogue.identities import IDENTITIES
from gradoracle.properties.lse.catalogue.masks import MASKS
from gradoracle.properties.lse.catalogue.symmetries import SYMMETRIES

PROPERTIES = (*IDENTITIES, *MASKS, *SYMMETRIES, *BACKWARDS)
