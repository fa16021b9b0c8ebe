"""Mistakes in calls: arguments in another order, and a grid that is too small."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.syntax import dotted, exchanges, last_name, plus, text


@operator()
def arguments_exchanged(node: cst.Call | cst.Tuple, place: Place) -> Iterator[Fault]:
    """Two neighbouring arguments of a launch or of a call of the file's own functions change places.

    Those in a tuple that is such an argument, too.
    """
    if isinstance(node, cst.Call):
        if _is_own(node, place):
            for a, b, code in exchanges(node.args):
                if a.keyword is None and b.keyword is None and a.star == b.star and _alike(a.value, b.value):
                    yield Fault(a, code, until=b)
    else:
        above = place.parent(node)
        call = place.parent(above) if isinstance(above, cst.Arg) else None
        if isinstance(call, cst.Call) and not place.kernel and _is_own(call, place):
            for one, other, code in exchanges(node.elements):
                if _alike(one.value, other.value):
                    yield Fault(one, code, until=other)


def _is_own(call: cst.Call, place: Place) -> bool:
    return isinstance(call.func, cst.Subscript) or last_name(call.func) == "apply" or place.is_own(call)


def _alike(a: cst.BaseExpression, b: cst.BaseExpression) -> bool:
    """Say whether two neighbours are two names, or two calls of one method: tensors, strides, sizes, flags."""
    if isinstance(a, cst.Call) and isinstance(b, cst.Call):
        return last_name(a.func) == last_name(b.func) and text(a) != text(b)
    one, other = dotted(a), dotted(b)
    return bool(one and other) and one != other and "None" not in (one, other)


@operator(kernels=False, cause="stale")
def program_missing(node: cst.Call, place: Place) -> Iterator[Fault]:
    """A grid has one program fewer along an axis."""
    if isinstance(node.func, cst.Subscript) and len(node.func.slice) == 1:
        held = node.func.slice[0].slice
        if isinstance(held, cst.Index) and isinstance(held.value, cst.Tuple):
            for each in held.value.elements:
                if not (isinstance(each.value, cst.Integer) and each.value.value == "1"):
                    yield Fault(each, plus(each.value, "1", "-"))
