"""Quantity: one value of a graph together with what is known of its rounding error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import torch
from torch import Tensor

from gradoracle.oracle.exact.trees import followed, leaves

FAR = 8.0  # standard deviations that a correct kernel may be off
LEAST_SQUARE = 1e-300  # of an error; squares of smaller ones would underflow in float64
_PAST_BOUNDS = 1e150  # largest variance or bound that is carried; its square is still finite


@dataclass(frozen=True)
class Quantity:
    """The value at one node of a graph with its errors in three forms; all tensors have the value's shape.

    Attributes:
        value: the graph's value in float64 (or an integer or bool tensor).
        variance: of the independent rounding errors; None if there are none.
        floor: the part of ``variance`` due to underflow; None if there is none.
        worst: a bound on the error with every rounding at its worst; None if there is no error.
        probes: [R, *shape], the value in each probe; None if every probe has ``value``.
        held: the coarsest format known to hold the value exactly; None if no such format is known.
        undecided: for bools, True where rounding may change the answer.
        others: for integers, [A, *shape], what they may be by another choice among values that tie; None where there is
            no other.
        place: identifies the rounding to an operand's format; views share that of their base.
    """

    value: Tensor
    variance: Tensor | None = None
    floor: Tensor | None = None
    worst: Tensor | None = None
    probes: Tensor | None = None
    held: str | None = None
    undecided: Tensor | None = None
    place: int = 0
    others: Tensor | None = None

    @property
    def is_float(self) -> bool:
        """Whether rounding concerns it at all."""
        return self.value.is_floating_point()


def values(tree: Any) -> Any:
    """The tree with each quantity replaced by its value."""
    return followed(lambda x: x.value if isinstance(x, Quantity) else x, tree)


def quantities(tree: Any) -> list[Quantity]:
    """The quantities of a tree, in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Quantity)]


class Errors(TypedDict):
    """The errors of a quantity, as keyword arguments of ``Quantity``."""

    variance: Tensor | None
    floor: Tensor | None
    worst: Tensor | None


def each_error(rule: Callable[[str], Tensor | None]) -> Errors:
    """Each error from one rule, which is given its name."""
    return Errors(variance=rule("variance"), floor=rule("floor"), worst=rule("worst"))


def common(formats: Iterable[str | None]) -> str | None:
    """The one format that several quantities are held in; None if they are held in different ones."""
    found = set(formats)
    return found.pop() if len(found) == 1 else None


def any_error(tree: Any, attribute: str) -> bool:
    """Whether any quantity of the tree has this error (or ``probes``)."""
    if isinstance(tree, Quantity):
        return getattr(tree, attribute) is not None
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (tuple, list)):
        return False
    for branch in tree:  # a generator takes twice as long, and this is called several times per operator
        if isinstance(branch, Quantity):
            if getattr(branch, attribute) is not None:
                return True
        elif isinstance(branch, (tuple, list, dict)) and any_error(branch, attribute):
            return True
    return False


def plus(*terms: Tensor | None) -> Tensor | None:
    """The sum of those errors that are present."""
    present = [term for term in terms if term is not None]
    return None if not present else sum(present[1:], present[0])


def all_finite(x: Tensor) -> bool:
    """Whether all elements are finite, in one pass (False, too, where their sum overflows)."""
    return math.isfinite(float(x.sum()))


def where_finite(x: Tensor) -> Tensor | None:
    """Which elements are finite; None where all are."""
    return None if all_finite(x) else x.isfinite()


def cleared(error: Tensor | None, finite: Tensor | None) -> Tensor | None:
    """``error``, 0 where the value is not finite: such values carry no error (``finite`` is None if all are)."""
    if error is None or finite is None:
        return error
    return torch.where(finite, error, 0.0)


def bounded(q: Quantity) -> Quantity:
    """``q`` with its errors cut to a size that further arithmetic can carry without overflow."""

    def cut(error: Tensor | None) -> Tensor | None:
        if error is None or not error.numel() or float(error.max()) <= _PAST_BOUNDS:  # NaN is not
            return error
        return torch.nan_to_num(error, nan=_PAST_BOUNDS, posinf=_PAST_BOUNDS).clamp_max(_PAST_BOUNDS)

    variance, worst = cut(q.variance), cut(q.worst)
    same = variance is q.variance and worst is q.worst
    return q if same else replace(q, variance=variance, worst=worst)


def reach(q: Quantity) -> Tensor:
    """The size of a value with its error; 0 only where both are."""
    size = q.value.abs()
    if q.variance is not None:
        return torch.hypot(size, q.variance.sqrt())
    return size if q.probes is None else size + (q.probes - q.value).abs().amax(0)


def errors_alone(q: Quantity) -> Quantity:
    """``q`` less its value: 0 with the same errors."""
    probes = None if q.probes is None else q.probes - q.value
    return replace(q, value=torch.zeros_like(q.value), probes=probes)
