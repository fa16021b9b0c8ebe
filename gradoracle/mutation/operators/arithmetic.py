"""Faults in the formula: signs, terms, factors, order of operands, constants, and which function is taken."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, Operator
from gradoracle.mutation.operators.place import RANGES, Place
from gradoracle.mutation.operators.syntax import argument, called, dotted, last_name, text, tight

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
_UNTOUCHED = ("program_id", "num_programs", "zeros", "full")


def is_formula(node: cst.CSTNode, place: Place) -> bool:
    """Say whether an expression is of values, not of addresses or indices; sequences that are joined are neither."""
    sides = (node.left, node.right) if isinstance(node, cst.BinaryOperation) else ()
    joins = any(isinstance(side, _JOINED) for side in sides)
    return not joins and place.kind(node) not in _WHOLE


def is_scalar(node: cst.CSTNode, place: Place) -> bool:
    """Say whether an expression is plainly one number: a literal, or a parameter or constant named as a factor."""
    if isinstance(node, (cst.Integer, cst.Float)):
        return place.kernel or isinstance(node, cst.Float)
    if isinstance(node, cst.BinaryOperation):
        return is_scalar(node.left, place) and is_scalar(node.right, place)
    name = dotted(node).rpartition(".")[2]
    return bool(_SCALE.search(name)) or (name in place.parameters and name.isupper())


def is_shift(node: cst.CSTNode, place: Place) -> bool:
    """Say whether a difference is the argument of an exponential."""
    above = place.parent(node)
    call = place.parent(above) if isinstance(above, cst.Arg) else None
    return isinstance(call, cst.Call) and last_name(call.func) in ("exp", "exp2") and place.kernel


def _sign(node: cst.BinaryOperation | cst.UnaryOperation | cst.AugAssign, place: Place) -> Iterator[Fault]:
    if isinstance(node, cst.UnaryOperation):
        if isinstance(node.operator, cst.Minus) and is_formula(node.expression, place):
            yield Fault(node, text(node.expression), "sign" if place.is_result(node) else "")
    elif isinstance(node, cst.AugAssign):
        if isinstance(node.operator, (cst.AddAssign, cst.SubtractAssign)) and is_formula(node.target, place):
            new = "-=" if isinstance(node.operator, cst.AddAssign) else "+="
            yield Fault(node, f"{text(node.target)} {new} {text(node.value)}")
    elif isinstance(node.operator, (cst.Add, cst.Subtract)) and is_formula(node, place):
        new = "-" if isinstance(node.operator, cst.Add) else "+"
        yield Fault(node, f"{text(node.left)} {new} {text(node.right)}")


def _term(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    if not isinstance(node.operator, (cst.Add, cst.Subtract)) or not is_formula(node, place):
        return
    if not (isinstance(node.operator, cst.Subtract) and is_shift(node, place)):
        yield Fault(node, text(node.left), "term" if place.kind(node) == "float" else "")
    if isinstance(node.operator, cst.Add):
        yield Fault(node, text(node.right), "term" if place.kind(node) == "float" else "")


def _factor(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    if not isinstance(node.operator, (cst.Multiply, cst.Divide)) or not is_formula(node, place):
        return
    sides = ((node.left, node.right), (node.right, node.left))
    for kept, dropped in sides[: 2 if isinstance(node.operator, cst.Multiply) else 1]:
        if isinstance(kept, (cst.Integer, cst.Float)):  # what is left of 2.0 * x must be x
            continue
        cause = "ratio" if is_scalar(dropped, place) and place.is_result(node) else ""
        yield Fault(node, text(kept), cause)


def _twice(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    if not isinstance(node.operator, (cst.Multiply, cst.Divide)) or not is_formula(node, place):
        return
    operator = "*" if isinstance(node.operator, cst.Multiply) else "/"
    sides = (node.right, node.left) if operator == "*" else (node.right,)
    for side in sides:
        if is_scalar(side, place):
            whole = f"{text(node.left)} {operator} {text(node.right)}"
            yield Fault(node, f"{whole} {operator} {tight(side, 12)}", "ratio" if place.is_result(node) else "")
            return


def _swapped(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    if isinstance(node.operator, (cst.Subtract, cst.Divide)) and is_formula(node, place):
        least = 10 if isinstance(node.operator, cst.Subtract) else 11
        operator = "-" if isinstance(node.operator, cst.Subtract) else "/"
        if text(node.left) != text(node.right):
            yield Fault(node, f"{tight(node.right, least)} {operator} {tight(node.left, least + 1)}")


def _constant(node: cst.Integer | cst.Float | cst.Call, place: Place) -> Iterator[Fault]:
    if isinstance(node, cst.Call):
        if dotted(node.func) == "float" and node.args and not _is_argument(node, place, ("other",)):
            yield Fault(node, "0.0")
        return
    if _is_elsewhere(node, place):
        return
    value = node.evaluated_value
    if isinstance(node, cst.Float):
        yield Fault(node, "1.0" if value == 0 else repr(2 * value))
    else:
        yield Fault(node, str(value + 1))
        above = place.parent(node)
        added = isinstance(above, cst.BinaryOperation) and isinstance(above.operator, (cst.Add, cst.Subtract))
        if value == 1 and not added:  # x + 0 is x without the term
            yield Fault(node, "0")


def _is_argument(node: cst.CSTNode, place: Place, keywords: tuple[str, ...]) -> bool:
    above = place.parent(node)
    return isinstance(above, cst.Arg) and above.keyword is not None and above.keyword.value in keywords


def _is_elsewhere(node: cst.CSTNode, place: Place) -> bool:
    """Say whether a number is an axis, a bound of a loop, a value for masked elements, a block size or a length."""
    above = place.parent(node)
    if isinstance(above, cst.UnaryOperation):
        node, above = above, place.parent(above)
    if isinstance(above, cst.Arg):
        call = place.parent(above)
        if _is_argument(node, place, ("axis", "axes", "dim", "other")):
            return True
        if above.keyword is not None and above.keyword.value.isupper():
            return True
        if isinstance(call, cst.Call):
            if last_name(call.func) in RANGES or place.operation(call) in (
                "program_id",
                "num_programs",
                "zeros",
                "full",
            ):
                return True
            if place.operation(call) == "load" and above is argument(call, "other", 2):
                return True
            return place.operation(call) in ("sum", "max", "min", "argmax", "argmin") and above is not call.args[0]
    if isinstance(above, cst.Slice):
        return True
    return isinstance(above, cst.BinaryOperation) and isinstance(above.left, (cst.Tuple, cst.List))


def _function(node: cst.Call, place: Place) -> Iterator[Fault]:
    name = place.operation(node)
    if name in _FUNCTIONS:
        new = f"{dotted(node.func).rpartition('.')[0]}.{_FUNCTIONS[name]}"
        yield Fault(node, called(node, function=new))
    elif name == "abs" and node.args:
        yield Fault(node, text(node.args[0].value))


_SUMS = (cst.BinaryOperation,)
OPERATORS = (
    Operator(
        "sign",
        "In a formula + becomes -, - becomes +, or a minus is left out.",
        (cst.BinaryOperation, cst.UnaryOperation, cst.AugAssign),
        _sign,
    ),
    Operator("term dropped", "Of a sum or a difference in a formula one term is left out.", _SUMS, _term),
    Operator("factor dropped", "Of a product or a quotient in a formula one factor is left out.", _SUMS, _factor),
    Operator("factor twice", "A scalar factor or divisor is applied twice.", _SUMS, _twice),
    Operator("operands swapped", "a - b becomes b - a, and a / b becomes b / a.", _SUMS, _swapped),
    Operator(
        "constant",
        "A number in the code is another one: n + 1, 0 for 1, twice a float, 1.0 for 0.0, 0.0 for an infinity.",
        (cst.Integer, cst.Float, cst.Call),
        _constant,
    ),
    Operator(
        "function replaced",
        "exp becomes exp2, log log2, sqrt rsqrt, sin cos, and the reverse; abs is left out.",
        (cst.Call,),
        _function,
        wrappers=False,
    ),
)
