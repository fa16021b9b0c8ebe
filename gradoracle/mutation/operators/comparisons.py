"""Mistakes in comparisons, and in the bounds that they compare with."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.syntax import plus, text, tight

_EXCHANGED = {
    cst.LessThan: "<=",
    cst.LessThanEqual: "<",
    cst.GreaterThan: ">=",
    cst.GreaterThanEqual: ">",
    cst.Equal: "!=",
    cst.NotEqual: "==",
    cst.Is: "is not",
    cst.IsNot: "is",
}
# the comparison, and the shift of its bound that the exchanged one does not make: n <= N is n < N + 1 already
_INWARDS = {
    cst.LessThan: ("<", "-"),
    cst.LessThanEqual: ("<=", "+"),
    cst.GreaterThan: (">", "+"),
    cst.GreaterThanEqual: (">=", "-"),
}


@operator()
def comparison(node: cst.Comparison, place: Place) -> Iterator[Fault]:
    """< becomes <= and > becomes >=, and the reverse; == becomes !=, and the reverse; `is` with None likewise."""
    target = node.comparisons[0]
    if len(node.comparisons) == 1 and type(target.operator) in _EXCHANGED:
        code = f"{text(node.left)} {_EXCHANGED[type(target.operator)]} {text(target.comparator)}"
        yield Fault(node, code, "tail" if place.is_bound(node) else "")


@operator(wrappers=False)
def bound_shifted(node: cst.Comparison, place: Place) -> Iterator[Fault]:
    """A mask ends one position early: n < N becomes n < N - 1; `comparison` plants n <= N, which ends late."""
    target = node.comparisons[0]
    if len(node.comparisons) != 1 or type(target.operator) not in _INWARDS:
        return
    if not isinstance(target.comparator, (cst.Integer, cst.Float)) and place.kind(node.left) != "float":
        symbol, shift = _INWARDS[type(target.operator)]
        code = f"{tight(node.left, 6)} {symbol} {plus(target.comparator, '1', shift)}"
        yield Fault(node, code, "tail" if place.is_bound(node) else "")
