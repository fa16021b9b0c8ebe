"""None in place of gradients that are not needed, and of tangents and cotangents that are zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def spread(needs: Sequence[bool], results: Sequence[Any]) -> tuple[Any, ...]:
    """Return one entry per primal from the results of those that need one, None for the others."""
    remaining = iter(results)
    return tuple(next(remaining) if need else None for need in needs)


def asked(needs: Sequence[bool], results: Sequence[Any]) -> tuple[Any, ...]:
    """Return the results of those primals that need one, given one entry per primal: the inverse of `spread`."""
    return tuple(each for each, need in zip(results, needs, strict=True) if need)


def plus(a: Any, b: Any) -> Any:
    """Return a + b, with None as zero."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def complete(tangents: Sequence[Any], primals: Sequence[Any]) -> tuple[Any, ...]:
    """Return the tangents with zeros in place of None, expanded from one row so that they take no memory themselves.

    The tangent of a primal that is None stays None.
    """
    return tuple(
        primal.new_zeros(primal.shape[-1]).expand(primal.shape) if tangent is None and primal is not None else tangent
        for tangent, primal in zip(tangents, primals, strict=True)
    )
