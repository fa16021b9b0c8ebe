"""Faults in which of two values or branches is taken."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, Operator
from gradoracle.mutation.operators.place import Place, only_raises
from gradoracle.mutation.operators.syntax import argument_text, dotted, text, tight


def _branches(node: cst.Call | cst.IfExp, place: Place) -> Iterator[Fault]:
    if isinstance(node, cst.IfExp):
        if text(node.body) != text(node.orelse):
            yield Fault(node, f"{tight(node.orelse, 2)} if {text(node.test)} else {text(node.body)}")
    elif place.operation(node) == "where" and len(node.args) == 3 and not any(each.keyword for each in node.args):
        one, other = (argument_text(each) for each in node.args[1:])
        if one != other:
            yield Fault(node.args[1], f"{other}, {one}", until=node.args[2])


def _selection(node: cst.Call, place: Place) -> Iterator[Fault]:
    if place.operation(node) == "where" and len(node.args) == 3:
        one, other = node.args[1].value, node.args[2].value
        if _is_literal(one) and _is_literal(other):
            return
        kept = other if _is_literal(one) else one
        yield Fault(node, text(kept), "tail" if kept is one and place.is_bound(node.args[0].value) else "")


def _is_literal(node: cst.BaseExpression) -> bool:
    return isinstance(node, (cst.Integer, cst.Float)) or (isinstance(node, cst.Call) and dotted(node.func) == "float")


def _negated(node: cst.If, place: Place) -> Iterator[Fault]:
    if not _flag(node.test, place) and not only_raises(node.body.body) and not _compares(node.test):
        yield Fault(node.test, _not(node.test))


def _compares(test: cst.BaseExpression) -> bool:
    """Say whether the reverse of a condition is what the comparison's operator plants."""
    return isinstance(test, cst.Comparison) and isinstance(
        test.comparisons[0].operator, (cst.Equal, cst.NotEqual, cst.Is, cst.IsNot)
    )


def _flipped(node: cst.If | cst.IfExp | cst.Name, place: Place) -> Iterator[Fault]:
    if isinstance(node, cst.Name):
        if node.value in ("True", "False"):
            yield Fault(node, "False" if node.value == "True" else "True")
    elif _flag(node.test, place) and isinstance(node, cst.If):
        yield Fault(node.test, _not(node.test))


def _flag(test: cst.BaseExpression, place: Place) -> bool:
    inner = test.expression if isinstance(test, cst.UnaryOperation) else test
    return isinstance(inner, cst.Name) and inner.value in place.flags


def _not(test: cst.BaseExpression) -> str:
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return text(test.expression)
    return f"not {tight(test, 5)}"


OPERATORS = (
    Operator(
        "branches swapped",
        "Where a condition holds the other of two values is taken.",
        (cst.Call, cst.IfExp),
        _branches,
    ),
    Operator(
        "selection dropped",
        "A value is taken whether or not its condition holds.",
        (cst.Call,),
        _selection,
        wrappers=False,
    ),
    Operator("condition negated", "The branch is taken where its condition does not hold.", (cst.If,), _negated),
    Operator(
        "flag flipped",
        "A constant that switches code on switches it off, and the reverse.",
        (cst.If, cst.Name),
        _flipped,
    ),
)
