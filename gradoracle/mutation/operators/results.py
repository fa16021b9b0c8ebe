"""Faults in what a kernel stores, a function returns and an autograd function saves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, Operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.syntax import argument, argument_text, dotted, last_name, text, tight

_DERIVATIVES = ("backward", "jvp", "vjp")


def _returned(node: cst.Return, place: Place) -> list[cst.BaseElement]:
    """Return the elements that a derivative's rule returns, those that are None left out."""
    if place.kernel or place.function.name.value not in _DERIVATIVES:
        return []
    held = node.value
    elements = list(held.elements) if isinstance(held, cst.Tuple) else []
    return [each for each in elements if dotted(each.value) != "None"]


def _dropped(node: cst.Return, place: Place) -> Iterator[Fault]:
    for each in _returned(node, place):
        if isinstance(each, cst.StarredElement):
            yield Fault(each, f"*(None for _ in {tight(each.value, 2)})")
        else:
            yield Fault(each, "None")
            yield Fault(each, f"torch.zeros_like({text(each.value)})")


def _negated(node: cst.Return | cst.Arg, place: Place) -> Iterator[Fault]:
    for each, value in _results(node, place):
        yield Fault(each, f"-{tight(value, 12)}")


def _doubled(node: cst.Return | cst.Arg, place: Place) -> Iterator[Fault]:
    for each, value in _results(node, place):
        yield Fault(each, f"{'2.0' if place.kernel else '2'} * {tight(value, 12)}")


def _results(node: Any, place: Place) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield what a kernel stores, before it is rounded to the tensor's dtype, and what a derivative's rule returns."""
    if isinstance(node, cst.Return):
        returned = _returned(node, place)
        yield from ((each, each.value) for each in returned if not isinstance(each, cst.StarredElement))
        return
    call, held = place.parent(node), node.value
    stores = isinstance(call, cst.Call) and place.operation(call) == "store" and node is argument(call, "value", 1)
    casts = isinstance(held, cst.Call) and isinstance(held.func, cst.Attribute) and held.func.attr.value == "to"
    if stores and casts and held.args and "element_ty" in text(held.args[0].value):
        yield held.func.value, held.func.value


def _exchanged(node: cst.Return, place: Place) -> Iterator[Fault]:
    held = node.value
    elements = list(held.elements) if isinstance(held, cst.Tuple) else []
    for one, other in pairwise(elements):
        starred = isinstance(one, cst.StarredElement) or isinstance(other, cst.StarredElement)
        if not starred and text(one.value) != text(other.value):
            yield Fault(one, f"{text(other.value)}, {text(one.value)}", until=other)


def _saved(node: cst.Call, place: Place) -> Iterator[Fault]:
    if last_name(node.func) in ("save_for_backward", "save_for_forward"):
        args = [each for each in node.args if not each.star]
        for one, other in pairwise(args):
            yield Fault(one, argument_text(other))
            yield Fault(other, argument_text(one))


def _unpacked(node: cst.Assign, place: Place) -> Iterator[Fault]:
    """Yield faults that exchange neighbours of what ``ctx.saved_tensors`` is unpacked into."""
    target = node.targets[0].target
    if not place.kernel and last_name(node.value) == "saved_tensors" and isinstance(target, cst.Tuple):
        elements = list(target.elements)
        for one, other in pairwise(elements):
            if not isinstance(one, cst.StarredElement) and not isinstance(other, cst.StarredElement):
                yield Fault(one, f"{text(other.value)}, {text(one.value)}", until=other)


def _stale(node: cst.Attribute, place: Place) -> Iterator[Fault]:
    if node.attr.value == "saved_tensors":
        yield Fault(node, f'globals().setdefault("_first_{place.class_name.lower()}", {text(node)})')


def _partials(node: cst.Call, place: Place) -> Iterator[Fault]:
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "sum" and len(node.args) == 1:
        dim = node.args[0]
        if dim.keyword is None or dim.keyword.value in ("dim", "axis"):
            yield Fault(node, f"{text(node.func.value)}.select({text(dim.value)}, 0)")


OPERATORS = (
    Operator(
        "result negated", "An output or a gradient has the other sign.", (cst.Return, cst.Arg), _negated, cause="sign"
    ),
    Operator(
        "result doubled", "An output or a gradient is twice as large.", (cst.Return, cst.Arg), _doubled, cause="ratio"
    ),
    Operator(
        "gradient dropped",
        "The rule of a derivative returns None or zeros in place of a gradient or tangent.",
        (cst.Return,),
        _dropped,
        kernels=False,
        cause="term",
    ),
    Operator(
        "results exchanged", "Two neighbouring values that a function returns change places.", (cst.Return,), _exchanged
    ),
    Operator(
        "saved twice",
        "In place of a tensor that is saved for a derivative its neighbour is saved.",
        (cst.Call,),
        _saved,
        kernels=False,
    ),
    Operator(
        "saved exchanged",
        "Two neighbouring saved tensors are taken for each other.",
        (cst.Assign,),
        _unpacked,
        kernels=False,
    ),
    Operator(
        "saved stale",
        "A derivative reads the tensors that the first call of the process saved.",
        (cst.Attribute,),
        _stale,
        kernels=False,
        cause="stale",
    ),
    Operator(
        "partial sums lost",
        "Of the parts of a sum that programs left only the first is taken.",
        (cst.Call,),
        _partials,
        kernels=False,
        cause="sum",
    ),
)
