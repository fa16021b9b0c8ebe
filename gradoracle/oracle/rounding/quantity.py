"""Quantity: one value of a graph together with what is known of its rounding error."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradoracle.oracle.exact.trees import followed, leaves

_PAST_BOUNDS = 1e150  # of a variance or a bound; its square is still finite


@dataclass(frozen=True)
class Quantity:
    """The value at one node of a graph, with its errors in three forms; all tensors of the value's shape.

    Attributes:
        value: as the graph gives it in float64 (or an integer or bool tensor).
        variance: of the independent rounding errors; None where there is none.
        floor: the part of ``variance`` that is underflow; None where there is none.
        worst: a bound of the error with every rounding at its worst; None where there is no error.
        probes: [R, *shape], the value in each probe; None where all probes have ``value``.
        held: the coarsest format known to hold the value exactly; None where it is not known to be held in any.
        undecided: for bools, True where rounding may turn the answer.
        place: which rounding to an operand's format this value shares (views share their base's).
    """

    value: Tensor
    variance: Tensor | None = None
    floor: Tensor | None = None
    worst: Tensor | None = None
    probes: Tensor | None = None
    held: str | None = None
    undecided: Tensor | None = None
    place: int = 0

    @property
    def is_float(self) -> bool:
        """Whether rounding concerns it at all."""
        return self.value.is_floating_point()

    def with_(self, **changes: Any) -> Quantity:
        """A copy with some attributes changed."""
        return replace(self, **changes)


def values(tree: Any) -> Any:
    """The same tree with each quantity's value."""
    return followed(lambda x: x.value if isinstance(x, Quantity) else x, tree)


def quantities(tree: Any) -> list[Quantity]:
    """The quantities of a tree, in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Quantity)]


def errors(tree: Any, attribute: str) -> Any:
    """The same tree with each float quantity's error (zeros where it has none), integers and bools as they are."""

    def error(x: Any) -> Any:
        if not isinstance(x, Quantity):
            return x
        if not x.is_float:
            return x.value
        own = getattr(x, attribute)
        return torch.zeros_like(x.value) if own is None else own

    return followed(error, tree)


def any_error(tree: Any, attribute: str) -> bool:
    """Whether any quantity of the tree has this error."""
    if isinstance(tree, Quantity):
        return getattr(tree, attribute) is not None
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (tuple, list)):
        return False
    for branch in tree:  # a generator would take twice as long, and every operator is asked this several times
        if isinstance(branch, Quantity):
            if getattr(branch, attribute) is not None:
                return True
        elif isinstance(branch, (tuple, list, dict)) and any_error(branch, attribute):
            return True
    return False


def plus(*terms: Tensor | None) -> Tensor | None:
    """The sum of errors of which any may be absent."""
    present = [term for term in terms if term is not None]
    return None if not present else sum(present[1:], present[0])


def all_finite(x: Tensor) -> bool:
    """Whether all elements are finite, in one pass (a sum that overflows is taken for one that is not)."""
    return math.isfinite(float(x.sum()))


def where_finite(x: Tensor) -> Tensor | None:
    """Which elements are finite; None where all are."""
    return None if all_finite(x) else x.isfinite()


def cleared(error: Tensor | None, finite: Tensor | None) -> Tensor | None:
    """``error``, 0 where the value is not finite: such values carry no error (None: all values are finite)."""
    if error is None or finite is None:
        return error
    return torch.where(finite, error, 0.0)


def bounded(q: Quantity) -> Quantity:
    """``q`` with errors that further arithmetic can carry: what is past all bounds stays there, and is not infinite."""

    def cut(error: Tensor | None) -> Tensor | None:
        if error is None or not error.numel() or float(error.max()) <= _PAST_BOUNDS:  # NaN is not
            return error
        return torch.nan_to_num(error, nan=_PAST_BOUNDS, posinf=_PAST_BOUNDS).clamp_max(_PAST_BOUNDS)

    variance, worst = cut(q.variance), cut(q.worst)
    same = variance is q.variance and worst is q.worst
    return q if same else q.with_(variance=variance, worst=worst)
