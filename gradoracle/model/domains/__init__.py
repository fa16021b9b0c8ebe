"""Domains: what the inputs of a kernel may hold, a class for each kind of integer input; and ranges of float inputs."""

from __future__ import annotations

from gradoracle.model.domains.bits import Bits
from gradoracle.model.domains.block_table import BlockTable
from gradoracle.model.domains.declared import at_most_of, declared_domains, in_reading_order
from gradoracle.model.domains.distinct import Distinct
from gradoracle.model.domains.domain import Domain, Drawing, Longer, Neighbours
from gradoracle.model.domains.index_domain import IndexDomain
from gradoracle.model.domains.lengths import Lengths
from gradoracle.model.domains.mask import Mask
from gradoracle.model.domains.offsets import Offsets
from gradoracle.model.domains.permutation import Permutation
from gradoracle.model.domains.positions import Positions
from gradoracle.model.domains.ranges import AtMost, Between, Range, UnitRows
from gradoracle.model.domains.seed import Seed
from gradoracle.model.domains.segments import Segments

_CLASSES: tuple[type[Domain], ...] = (
    Bits, BlockTable, Distinct, IndexDomain, Lengths, Mask, Offsets, Permutation, Positions, Seed, Segments,
)  # fmt: skip
DOMAINS = {each.__name__: each for each in _CLASSES}
"""The classes by name."""

__all__ = [
    "DOMAINS",
    "AtMost",
    "Between",
    "Bits",
    "BlockTable",
    "Distinct",
    "Domain",
    "Drawing",
    "IndexDomain",
    "Lengths",
    "Longer",
    "Mask",
    "Neighbours",
    "Offsets",
    "Permutation",
    "Positions",
    "Range",
    "Seed",
    "Segments",
    "UnitRows",
    "at_most_of",
    "declared_domains",
    "in_reading_order",
]
