"""Faults in comparisons, and in the bounds that they compare with."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, Operator
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
_INWARDS = {cst.LessThan: "- 1", cst.LessThanEqual: "+ 1", cst.GreaterThan: "+ 1", cst.GreaterThanEqual: "- 1"}


def _comparison(node: cst.Comparison, place: Place) -> Iterator[Fault]:
    if len(node.comparisons) == 1 and type(node.comparisons[0].operator) in _EXCHANGED:
        target = node.comparisons[0]
        new = _EXCHANGED[type(target.operator)]
        cause = "tail" if place.is_bound(node) else ""
        yield Fault(node, f"{text(node.left)} {new} {text(target.comparator)}", cause)


def _bound(node: cst.Comparison, place: Place) -> Iterator[Fault]:
    if len(node.comparisons) != 1 or type(node.comparisons[0].operator) not in _INWARDS:
        return
    target = node.comparisons[0]
    if isinstance(target.comparator, (cst.Integer, cst.Float)) or "float" in map(place.kind, (node.left,)):
        return
    operator = {cst.LessThan: "<", cst.LessThanEqual: "<=", cst.GreaterThan: ">", cst.GreaterThanEqual: ">="}
    # the shift that the other comparison does not make: n <= N is n < N + 1 already
    sign, one = _INWARDS[type(target.operator)].split()
    shifted = plus(target.comparator, one, sign)
    cause = "tail" if place.is_bound(node) else ""
    yield Fault(node, f"{tight(node.left, 6)} {operator[type(target.operator)]} {shifted}", cause)


OPERATORS = (
    Operator(
        "comparison",
        "< becomes <= and > becomes >=, and the reverse; == becomes !=, and the reverse; `is` with None likewise.",
        (cst.Comparison,),
        _comparison,
    ),
    Operator(
        "bound shifted",
        "A mask ends one position early: n < N becomes n < N - 1; what ends late is n <= N, of the comparisons.",
        (cst.Comparison,),
        _bound,
        wrappers=False,
    ),
)
