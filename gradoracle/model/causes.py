"""Causes of wrong tensors, by name: those that a diagnosis names, and those that planted faults have besides."""

from __future__ import annotations

CAUSES = {
    "sign": "a wrong sign",
    "term": "a term of the formula is missing",
    "ratio": "a missing or extra factor",
    "operands": "operands are exchanged, or one stands for another",
    "comparison": "another comparison",
    "offset": "an offset is computed in 32 bits and wraps past 2^31",
}
PLANTED = (
    *CAUSES,
    *("tail", "slice", "transpose", "shift", "sum", "dtype", "stale", "layout", "range", "access"),  # never named
)
