"""Faults in calls: arguments in another order, and a grid that is too small."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, Operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.syntax import argument_text, dotted, last_name, plus, text


def _arguments(node: cst.Call | cst.Tuple, place: Place) -> Iterator[Fault]:
    """Yield exchanges of neighbours, in calls of the file's own functions and launches and in tuples handed to them."""
    if isinstance(node, cst.Tuple):
        above = place.parent(node)
        call = place.parent(above) if isinstance(above, cst.Arg) else None
        if isinstance(call, cst.Call) and not place.kernel and _is_own(call, place):
            elements = list(node.elements)
            for one, other in pairwise(elements):
                if _alike(one.value, other.value):
                    yield Fault(one, f"{_element(other)}, {_element(one)}", until=other)
    elif _is_own(node, place):
        for a, b in pairwise(node.args):
            if a.keyword is None and b.keyword is None and a.star == b.star and _alike(a.value, b.value):
                yield Fault(a, f"{argument_text(b)}, {argument_text(a)}", until=b)


def _element(node: cst.BaseElement) -> str:
    return f"*{text(node.value)}" if isinstance(node, cst.StarredElement) else text(node.value)


def _is_own(call: cst.Call, place: Place) -> bool:
    return isinstance(call.func, cst.Subscript) or last_name(call.func) == "apply" or place.is_own(call)


def _alike(a: cst.BaseExpression, b: cst.BaseExpression) -> bool:
    """Say whether two neighbours are two names, or two calls of one method: tensors, strides, sizes, flags."""
    if isinstance(a, cst.Call) and isinstance(b, cst.Call):
        return last_name(a.func) == last_name(b.func) and text(a) != text(b)
    one, other = dotted(a), dotted(b)
    return bool(one and other) and one != other and "None" not in (one, other)


def _program(node: cst.Call, place: Place) -> Iterator[Fault]:
    if not isinstance(node.func, cst.Subscript) or len(node.func.slice) != 1:
        return
    held = node.func.slice[0].slice
    if isinstance(held, cst.Index) and isinstance(held.value, cst.Tuple):
        for each in held.value.elements:
            if not (isinstance(each.value, cst.Integer) and each.value.value == "1"):
                yield Fault(each, plus(each.value, "1", "-"))


OPERATORS = (
    Operator(
        "arguments exchanged",
        "Two neighbouring arguments of a launch or of a call of the file's own functions change places.",
        (cst.Call, cst.Tuple),
        _arguments,
    ),
    Operator(
        "program missing",
        "A grid has one program less along an axis.",
        (cst.Call,),
        _program,
        kernels=False,
        cause="stale",
    ),
)
