"""What is absent: gradients that nobody asked for, and tangents and cotangents that are None where they are zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def spread(needs: Sequence[bool], results: Sequence[Any]) -> tuple[Any, ...]:
    """Return one entry per primal from the results of those that need one, None for the others."""
    remaining = iter(results)
    return tuple(next(remaining) if need else None for need in needs)


def asked(needs: Sequence[bool], results: Sequence[Any]) -> tuple[Any, ...]:
    """Return the results of those primals that need one, of one entry per primal: what `spread` takes."""
    return tuple(each for each, need in zip(results, needs, strict=True) if need)


def plus(a: Any, b: Any) -> Any:
    """Return a + b where None is zero."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def complete(tangents: Sequence[Any], primals: Sequence[Any]) -> tuple[Any, ...]:
    """Return the tangents with zeros, one expanded row and so no memory, for those that are None.

    A primal that is None has none.
    """
    return tuple(
        primal.new_zeros(primal.shape[-1]).expand(primal.shape) if tangent is None and primal is not None else tangent
        for tangent, primal in zip(tangents, primals, strict=True)
    )
