"""The rules of every operator that the exact readings know: importing this fills ``scalars.RULES``."""

from __future__ import annotations

from gradoracle.oracle.exact import (
    operators_elementwise,
    operators_logic,
    operators_movement,
    operators_product,
    operators_reduction,
)
from gradoracle.oracle.exact.scalars import RULES

__all__ = [
    "RULES",
    "operators_elementwise",
    "operators_logic",
    "operators_movement",
    "operators_product",
    "operators_reduction",
]
