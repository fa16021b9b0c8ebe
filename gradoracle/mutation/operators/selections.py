"""Mistakes in which of two values or branches is taken."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import Place, only_raises
from gradoracle.mutation.operators.syntax import argument_text, dotted, text, tight


@operator()
def branches_swapped(node: cst.Call | cst.IfExp, place: Place) -> Iterator[Fault]:
    """Where a condition holds, the other of two values is taken."""
    if isinstance(node, cst.IfExp):
        if text(node.body) != text(node.orelse):
            yield Fault(node, f"{tight(node.orelse, 2)} if {text(node.test)} else {text(node.body)}")
    elif place.operation(node) == "where" and len(node.args) == 3 and not any(each.keyword for each in node.args):
        one, other = (argument_text(each) for each in node.args[1:])
        if one != other:
            yield Fault(node.args[1], f"{other}, {one}", until=node.args[2])


@operator(wrappers=False)
def selection_dropped(node: cst.Call, place: Place) -> Iterator[Fault]:
    """A value is taken whether or not its condition holds."""
    if place.operation(node) == "where" and len(node.args) == 3:
        condition, one, other = (each.value for each in node.args)
        if not (_is_literal(one) and _is_literal(other)):
            kept = other if _is_literal(one) else one
            yield Fault(node, text(kept), "tail" if kept is one and place.is_bound(condition) else "")


def _is_literal(node: cst.BaseExpression) -> bool:
    return isinstance(node, (cst.Integer, cst.Float)) or (isinstance(node, cst.Call) and dotted(node.func) == "float")


@operator()
def condition_negated(node: cst.If, place: Place) -> Iterator[Fault]:
    """A branch is taken where its condition does not hold."""
    if not _is_flag(node.test, place) and not only_raises(node.body.body) and not _compares(node.test):
        yield Fault(node.test, _not(node.test))


def _compares(test: cst.BaseExpression) -> bool:
    """Say whether the operator `comparison` plants the negation of a condition."""
    equalities = (cst.Equal, cst.NotEqual, cst.Is, cst.IsNot)
    return isinstance(test, cst.Comparison) and isinstance(test.comparisons[0].operator, equalities)


@operator()
def flag_flipped(node: cst.If | cst.Name, place: Place) -> Iterator[Fault]:
    """A constant that switches code on switches it off, and the reverse."""
    if isinstance(node, cst.Name):
        if node.value in ("True", "False"):
            yield Fault(node, "False" if node.value == "True" else "True")
    elif _is_flag(node.test, place):
        yield Fault(node.test, _not(node.test))


def _is_flag(test: cst.BaseExpression, place: Place) -> bool:
    inner = test.expression if isinstance(test, cst.UnaryOperation) else test
    return isinstance(inner, cst.Name) and inner.value in place.flags


def _not(test: cst.BaseExpression) -> str:
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return text(test.expression)
    return f"not {tight(test, 5)}"
