"""Mistakes in the formula: signs, terms, factors, order of operands, constants, and the function that is called."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import RANGES, Place
from gradoracle.mutation.operators.syntax import (
    argument,
    dotted,
    is_product,
    is_sum,
    last_name,
    opposite,
    qualified,
    renamed,
    text,
    tight,
)

_SCALE = re.compile(r"(^|_)(scale|inv|inverse|log2e?|ln2|factor|eps|rcp|reciprocal)(_|$)", re.IGNORECASE)
_WHOLE = ("integer", "pointer", "mask")
_FUNCTIONS = {
    "exp": "exp2",
    "exp2": "exp",
    "log": "log2",
    "log2": "log",
    "sqrt": "rsqrt",
    "rsqrt": "sqrt",
    "sin": "cos",
    "cos": "sin",
}
_JOINED = (cst.Tuple, cst.List, cst.SimpleString, cst.FormattedString)


def is_formula(node: cst.CSTNode, place: Place) -> bool:
    """Say whether an expression computes values, not addresses or indices; joined sequences are neither."""
    sides = (node.left, node.right) if isinstance(node, cst.BinaryOperation) else ()
    joins = any(isinstance(side, _JOINED) for side in sides)
    return not joins and place.kind(node) not in _WHOLE


def is_scalar(node: cst.CSTNode, place: Place) -> bool:
    """Say whether an expression is plainly one number: a literal, or a parameter or constant named as a factor."""
    if isinstance(node, (cst.Integer, cst.Float)):
        return place.kernel or isinstance(node, cst.Float)
    if isinstance(node, cst.BinaryOperation):
        return is_scalar(node.left, place) and is_scalar(node.right, place)
    _, name = qualified(node)
    return bool(_SCALE.search(name)) or (name in place.parameters and name.isupper())


def is_shift(node: cst.BinaryOperation, place: Place) -> bool:
    """Say whether a sum is a difference in the argument of an exponential."""
    above = place.parent(node)
    call = place.parent(above) if isinstance(above, cst.Arg) else None
    exponential = isinstance(call, cst.Call) and last_name(call.func) in ("exp", "exp2")
    return exponential and place.kernel and isinstance(node.operator, cst.Subtract)


@operator()
def sign(node: cst.BinaryOperation | cst.UnaryOperation | cst.AugAssign, place: Place) -> Iterator[Fault]:
    """In a formula + becomes -, - becomes +, or a minus is dropped."""
    if isinstance(node, cst.UnaryOperation):
        if isinstance(node.operator, cst.Minus) and is_formula(node.expression, place):
            yield Fault(node, text(node.expression), "sign" if place.is_result(node) else "")
    elif isinstance(node, cst.AugAssign):
        if isinstance(node.operator, (cst.AddAssign, cst.SubtractAssign)) and is_formula(node.target, place):
            yield Fault(node, opposite(node))
    elif is_sum(node) and is_formula(node, place):
        yield Fault(node, opposite(node))


@operator()
def term_dropped(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    """One term of a sum or a difference in a formula is dropped."""
    if is_sum(node) and is_formula(node, place):
        cause = "term" if place.kind(node) == "float" else ""
        if not is_shift(node, place):
            yield Fault(node, text(node.left), cause)
        if isinstance(node.operator, cst.Add):
            yield Fault(node, text(node.right), cause)


@operator()
def factor_dropped(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    """One factor of a product or a quotient in a formula is dropped."""
    if is_product(node) and is_formula(node, place):
        sides = ((node.left, node.right), (node.right, node.left))
        for kept, dropped in sides[: 2 if isinstance(node.operator, cst.Multiply) else 1]:
            if not isinstance(kept, (cst.Integer, cst.Float)):  # what is left of 2.0 * x must be x
                yield Fault(node, text(kept), "ratio" if is_scalar(dropped, place) and place.is_result(node) else "")


@operator()
def factor_twice(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    """A scalar factor or divisor is applied twice."""
    if is_product(node) and is_formula(node, place):
        symbol, sides = "/", [node.right]
        if isinstance(node.operator, cst.Multiply):
            symbol, sides = "*", [node.right, node.left]
        for side in [each for each in sides if is_scalar(each, place)][:1]:
            whole = f"{text(node.left)} {symbol} {text(node.right)}"
            yield Fault(node, f"{whole} {symbol} {tight(side, 12)}", "ratio" if place.is_result(node) else "")


@operator()
def operands_swapped(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    """a - b becomes b - a, and a / b becomes b / a."""
    if isinstance(node.operator, (cst.Subtract, cst.Divide)) and is_formula(node, place):
        symbol, least = ("-", 10) if isinstance(node.operator, cst.Subtract) else ("/", 11)
        if text(node.left) != text(node.right):
            yield Fault(node, f"{tight(node.right, least)} {symbol} {tight(node.left, least + 1)}")


@operator()
def constant(node: cst.Integer | cst.Float | cst.Call, place: Place) -> Iterator[Fault]:
    """A number in the code is replaced: n + 1 for n, 0 for 1, twice a float, 1.0 for 0.0, 0.0 for an infinity."""
    above = place.parent(node)
    if isinstance(node, cst.Call):
        if dotted(node.func) == "float" and node.args and _keyword(above) != "other":
            yield Fault(node, "0.0")
    elif _is_elsewhere(node, place):
        return
    elif isinstance(node, cst.Float):
        yield Fault(node, "1.0" if node.evaluated_value == 0 else repr(2 * node.evaluated_value))
    else:
        yield Fault(node, str(node.evaluated_value + 1))
        if node.evaluated_value == 1 and not is_sum(above):  # x + 0 is x without the term
            yield Fault(node, "0")


def _keyword(node: cst.CSTNode | None) -> str:
    return node.keyword.value if isinstance(node, cst.Arg) and node.keyword is not None else ""


def _is_elsewhere(node: cst.CSTNode, place: Place) -> bool:
    """Say whether a number is an axis, a bound of a loop, a value for masked elements, a block size or a length."""
    above = place.parent(node)
    if isinstance(above, cst.UnaryOperation):
        above = place.parent(above)
    if isinstance(above, cst.Arg):
        call = place.parent(above)
        if _keyword(above) in ("axis", "axes", "dim", "other") or _keyword(above).isupper():
            return True
        if not isinstance(call, cst.Call):
            return False
        operation = place.operation(call)
        if last_name(call.func) in RANGES or operation in ("program_id", "num_programs", "zeros", "full"):
            return True
        if operation == "load" and above is argument(call, "other", 2):
            return True
        return operation in ("sum", "max", "min", "argmax", "argmin") and above is not call.args[0]
    if isinstance(above, cst.Slice):
        return True
    return isinstance(above, cst.BinaryOperation) and isinstance(above.left, (cst.Tuple, cst.List))


@operator(wrappers=False)
def function_replaced(node: cst.Call, place: Place) -> Iterator[Fault]:
    """exp becomes exp2, log log2, sqrt rsqrt, sin cos, and the reverse; abs is dropped."""
    name = place.operation(node)
    if name in _FUNCTIONS:
        yield Fault(node, renamed(node, _FUNCTIONS[name]))
    elif name == "abs" and node.args:
        yield Fault(node, text(node.args[0].value))
